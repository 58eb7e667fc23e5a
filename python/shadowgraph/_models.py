"""Models made for a capture: a module as it is, a function that makes one, a Hugging Face configuration."""

import collections
import contextlib
import sys

import torch

from . import _attributes, _schedules, _wrappers
from . import _shadowgraph as _C


def made(model, device, dtype, conversion=None):
    """The module that `model` stands for, made on `device` if it has to be made. Inside a mode.

    model: a torch.nn.Module; a function without arguments that gives one; a schedule of torch.distributed.pipelining,
        or a function that gives one, which becomes a PipelineRank; a transformers configuration, or a class of
        transformers' models, which gets its configuration's defaults. What it leaves on the CPU is moved to `device`,
        as .to(device) would: torch.Tensor(n) and torch.FloatTensor(n) make their tensors there whatever the default.
    """
    if isinstance(model, torch.nn.Module):
        return model
    if _schedules.is_schedule(model):
        return _schedules.as_model(model)
    with default_dtype(dtype), torch.device(device):
        if _is_configuration(model):
            module = _from_configuration(model)
        elif isinstance(model, type) and (configuration := getattr(model, "config_class", None)) is not None:
            module = model(configuration())
        elif callable(model):
            module = model()
        else:
            raise _C.Error(
                f"{type(model).__name__} is no model: give a torch.nn.Module, a function that makes one, or a "
                "transformers configuration"
            )
    module = _schedules.as_model(module)
    if not isinstance(module, torch.nn.Module):
        raise _C.Error(f"the function gave {type(module).__name__}, no torch.nn.Module")
    wanted = torch.device(device)
    tensors = (*module.parameters(), *module.buffers())
    # Parts of tensors are where the program puts them: FSDP2 keeps them on the CPU if told so.
    placed = any(_wrappers.is_wrapper(tensor) for tensor in tensors)
    if wanted.type != "cpu" and not placed and any(tensor.device.type == "cpu" for tensor in tensors):
        module._apply(lambda tensor: tensor.to(wanted) if tensor.device.type == "cpu" else tensor)
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None and _changes_as_it_moves(parameter):
                part._parameters[name] = _moved(parameter, wanted)
    if dtype is not None:
        conversion = Conversion() if conversion is None else conversion
        before = [parameter.dtype for parameter in module.parameters()]
        module.to(dtype)
        for was, parameter in zip(before, module.parameters()):
            conversion.note(was, parameter)
    return module


class Conversion:
    """What dtype= has done to parameters that the program makes in another dtype: adapters, norms, whole modules."""

    def __init__(self):
        self._counts: collections.Counter[tuple[str, str]] = collections.Counter()

    def note(self, before, parameter):
        if parameter.dtype != before:
            self._counts[(str(before).removeprefix("torch."), str(parameter.dtype).removeprefix("torch."))] += 1

    def text(self):
        """A sentence; empty where there was nothing to convert."""
        return "; ".join(
            f"dtype={after} converted {count} parameter{'s' if count > 1 else ''} made in {before}: without dtype= "
            f"{'they stay' if count > 1 else 'it stays'} as made"
            for (before, after), count in self._counts.items()
        )


def _changes_as_it_moves(parameter):
    """Whether a library's class moves it in a way of its own, and has yet to do so: bitsandbytes quantises."""
    own = _wrappers.has_class_of_its_own(parameter) and type(parameter).to is not torch.Tensor.to
    return own and parameter.is_floating_point()


def _moved(parameter, *where):
    """The parameter as module.to(where) leaves it. Some classes quantise only what comes from the CPU."""
    holder = torch.nn.Module()
    holder.register_parameter("parameter", parameter)
    holder.to(*where)
    if isinstance(where[0], torch.device) and holder.parameter.is_floating_point() and where[0].type != "cpu":
        holder.to("cpu").to(*where)
    return holder.parameter


def _is_configuration(model):
    return hasattr(model, "model_type") and hasattr(model, "to_dict") and not isinstance(model, type)


def _from_configuration(config):
    import transformers

    names = getattr(config, "architectures", None) or []
    for name in names:
        if hasattr(transformers, name):
            return _in_its_dtype(getattr(transformers, name), config)
    if type(config) in getattr(transformers.AutoModelForCausalLM, "_model_mapping", {}):
        return transformers.AutoModelForCausalLM.from_config(config)
    return transformers.AutoModel.from_config(config)


def _in_its_dtype(cls, config):
    """As from_pretrained makes it: in the dtype of the configuration, if that has one and no other is asked for."""
    dtype = getattr(config, "dtype", None)
    dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    asked = torch.get_default_dtype() != torch.float32
    with contextlib.nullcontext() if asked else default_dtype(dtype):
        return cls(config)


@contextlib.contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    if dtype is not None and dtype.is_floating_point:
        torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _hand_hooks_on(parameter, fake):
    """What the program has hung at a parameter's gradient runs for its fake: scaling, optimizers inside backward."""
    for hook in (parameter._backward_hooks or {}).values():
        fake.register_hook(hook)
    for hook in (parameter._post_accumulate_grad_hooks or {}).values():
        fake.register_post_accumulate_grad_hook(hook)


def parts_of(root):
    """What named_modules, named_parameters and named_buffers give, in one walk: each takes several times as long."""
    parts, seen = [], set()
    parameters: list[tuple[str, torch.Tensor]] = []
    buffers: list[tuple[str, torch.Tensor]] = []

    def walk(module, path):
        if id(module) in seen:
            return
        seen.add(id(module))
        parts.append((path, module))
        prefix = path + "." if path else ""
        for entries, found in ((module._parameters, parameters), (module._buffers, buffers)):
            for name, tensor in entries.items():
                if tensor is not None and id(tensor) not in known:
                    known.add(id(tensor))
                    found.append((prefix + name, tensor))
        for name, part in module._modules.items():
            if part is not None:
                walk(part, prefix + name)

    known = set()
    walk(root, "")
    return parts, parameters, buffers


OF_EVERY_MODULE = frozenset(vars(torch.nn.Module()))


class Converted:
    """A module whose tensors are fakes while this is entered, and its own again afterwards.

    Nothing is copied: the entries of _parameters and _buffers are replaced, tied ones by one fake, and put back.
    """

    def __init__(self, module, mode, device, dtype, conversion=None):
        self._module, self._mode, self._device, self._dtype = module, mode, device, dtype
        self._conversion = Conversion() if conversion is None else conversion
        self._entries = []
        self._attributes = []  # of modules whose parameters have some: (module, what they were)
        self._fakes = {}
        self._records = {}

    def _make(self, tensor):
        if _wrappers.is_fake(tensor):
            return tensor
        known = self._fakes.get(id(tensor))
        if known is None:
            own = _wrappers.has_class_of_its_own(tensor)
            fake = self._own(tensor) if own else _wrappers.rebuilt(tensor, self._fake_part)
            was = fake.dtype
            if self._dtype is not None and fake.is_floating_point():
                fake = _moved(fake, self._dtype) if own else fake.detach().to(self._dtype)
            if isinstance(tensor, torch.nn.Parameter):
                if not own:
                    fake = torch.nn.Parameter(fake.detach(), tensor.requires_grad)
                self._conversion.note(was, fake)
                _hand_hooks_on(tensor, fake)
            known = self._fakes[id(tensor)] = (tensor, fake)
        return known[1]

    def _fake_part(self, part):
        return part if _C.is_fake(part) else self._mode.from_real(part, self._device)

    def _own(self, tensor):
        """The fake of a tensor of a library's class, as that class moves it to the device."""
        if not _changes_as_it_moves(tensor):
            return _attributes.rebuilt(tensor, self._fake_part, self._records)
        return _moved(_attributes.rebuilt(tensor, self._mode.from_real, self._records), torch.device(self._device))

    def _convert_attributes(self, module):
        if not any(_wrappers.has_class_of_its_own(each) for each in module._parameters.values() if each is not None):
            return
        before = dict(vars(module))
        self._attributes.append((module, before))
        own = {name: value for name, value in before.items() if name not in OF_EVERY_MODULE}
        vars(module).update(_attributes.changed(own, self._fake_part, self._records))

    def __enter__(self):
        try:
            for module in self._module.modules():
                self._refuse_real_shards(module)
                self._convert_attributes(module)
                for entries in (module._parameters, module._buffers):
                    for name, tensor in entries.items():
                        if tensor is not None:
                            self._entries.append((entries, name, tensor))
                            entries[name] = self._make(tensor)
        except BaseException:
            self.__exit__()
            raise
        return self

    @staticmethod
    def _refuse_real_shards(module):
        """FSDP2 keeps tensors of its own beside the module's, which nothing here converts."""
        fsdp = sys.modules.get("torch.distributed.fsdp")
        sharded = fsdp is not None and isinstance(module, fsdp.FSDPModule)
        if sharded and not all(_wrappers.is_fake(parameter) for parameter in module.parameters()):
            raise _C.UnsupportedError(
                f"{type(module).__name__} was given to fully_shard with real parameters: give a function that makes "
                "it, sg.profile(make_model, ...), or make it inside `with sg.fake(...)`"
            )

    def __exit__(self, *exception):
        for entries, name, tensor in reversed(self._entries):
            entries[name] = tensor
        self._entries.clear()
        for module, before in self._attributes:
            vars(module).clear()
            vars(module).update(before)
        self._attributes.clear()
