"""Creates the module to capture from a module, a function that creates one, or a Hugging Face configuration."""

import collections
import contextlib
import sys

import torch
import torch.fx

from . import _attributes, _schedules, _thread_views, _wrappers
from . import _shadowgraph as _C


def create(model, device, dtype, conversion=None):
    """Returns the module for `model`, created on `device` unless it is a module already. Call inside a mode.

    model: a torch.nn.Module; a function without arguments that returns one; a schedule of torch.distributed.pipelining,
        or a function that returns one, which becomes a PipelineRank; a transformers configuration; or a transformers
        model class, which gets its default configuration. Tensors left on the CPU are moved to `device`, because
        torch.Tensor(n) and torch.FloatTensor(n) ignore the default device.
    """
    if isinstance(model, torch.nn.Module):
        return model
    if _schedules.is_schedule(model):
        return _schedules.as_model(model)
    with _C.Context() as around:
        around.enter_context(default_dtype(dtype))
        around.enter_context(torch.device(device))
        if _is_configuration(model):
            module = _from_configuration(model)
        elif isinstance(model, type) and (configuration := getattr(model, "config_class", None)) is not None:
            module = model(configuration())
        elif callable(model):
            module = model()
        else:
            raise _C.Error(
                f"cannot create a model from {type(model).__name__}; pass a torch.nn.Module, a function that returns "
                "one, or a transformers configuration"
            )
    module = _schedules.as_model(module)
    if not isinstance(module, torch.nn.Module):
        raise _C.Error(f"the model function must return a torch.nn.Module, but returned {type(module).__name__}")
    wanted = torch.device(device)
    tensors = (*module.parameters(), *module.buffers())
    if not any(_wrappers.is_fake(tensor) for tensor in tensors):
        return module  # it existed before, as that of ExportedProgram.module() does
    # Shards stay on the device that the program chose: FSDP2 supports CPU offload.
    placed = any(_wrappers.is_wrapper(tensor) for tensor in tensors)
    if wanted.type != "cpu" and not placed and any(tensor.device.type == "cpu" for tensor in tensors):
        module._apply(lambda tensor: tensor.to(wanted) if tensor.device.type == "cpu" else tensor)
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None and _quantizes_on_move(parameter):
                part._parameters[name] = _moved(parameter, wanted)
    if dtype is not None:
        before = [parameter.dtype for parameter in module.parameters()]
        module.to(dtype)
        for was, parameter in zip(before, module.parameters()) if conversion is not None else ():
            conversion.note(was, parameter)
    return module


def is_exported(module):
    """Returns True for the result of torch.export's ExportedProgram.module(), whose train() and eval() raise."""
    return isinstance(module, torch.fx.GraphModule) and "train" in vars(module)


class Conversion(collections.Counter[tuple[str, str]]):
    """Counts the parameters that dtype= converted from another dtype."""

    def note(self, before, parameter):
        if parameter.dtype != before:
            self[(str(before).removeprefix("torch."), str(parameter.dtype).removeprefix("torch."))] += 1

    def text(self):
        """Returns a note for the report, empty if no parameter was converted."""
        return "; ".join(
            f"dtype={after} converted {count} parameter{'s' if count > 1 else ''} from {before}; omit dtype= to keep "
            f"{'their' if count > 1 else 'its'} dtype"
            for (before, after), count in self.items()
        )


def _quantizes_on_move(parameter):
    """Returns True for a subclass that overrides .to() and is not quantized yet, as in bitsandbytes."""
    own = _wrappers.is_subclass(parameter) and type(parameter).to is not torch.Tensor.to
    return own and parameter.is_floating_point()


def _moved(parameter, *where):
    """Returns the parameter after module.to(where). Some classes quantize only when moved from the CPU."""
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

    for name in getattr(config, "architectures", None) or []:
        found = getattr(transformers, str(name), None)
        if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel):
            return _in_its_dtype(found, config)
    if type(config) in getattr(transformers.AutoModelForCausalLM, "_model_mapping", {}):
        return transformers.AutoModelForCausalLM.from_config(config)
    return transformers.AutoModel.from_config(config)


def beyond_positions(module, tokens):
    """Returns a note if there are more tokens than positions, else "". Raises Error if the positions are a table."""
    text_config = getattr(getattr(module, "config", None), "get_text_config", None)
    longest = getattr(text_config and text_config(decoder=True), "max_position_embeddings", None)
    if not isinstance(longest, int) or longest < 1 or tokens <= longest:
        return ""
    note = f"{tokens:,} tokens exceed max_position_embeddings of the configuration, {longest:,}"
    for name, part in module.named_modules():
        if isinstance(part, torch.nn.Embedding) and ("wpe" in name or "position" in name):
            raise _C.Error(f"{note}, which is the size of the table {name}; use shorter sequences")
    return note


def _in_its_dtype(cls, config):
    """Creates the model in the dtype of its configuration, like from_pretrained, unless a default dtype is set."""
    dtype = getattr(config, "dtype", None)
    dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    is_explicit = torch.get_default_dtype() != torch.float32
    with contextlib.nullcontext() if is_explicit else default_dtype(dtype):
        return cls(config)


class default_dtype(_C.Cleanup):
    """Sets torch's default dtype, unless it is None or not a floating-point one."""

    def __init__(self, dtype):
        super().__init__()
        self._dtype = dtype

    def _enter(self):
        if self._dtype is not None and self._dtype.is_floating_point:
            self.on_exit(torch._C._set_default_dtype, torch.get_default_dtype())
            torch.set_default_dtype(self._dtype)


def _copy_hooks(parameter, fake):
    """Registers the gradient hooks of a parameter, such as optimizers in backward, on its fake tensor."""
    for hook in (parameter._backward_hooks or {}).values():
        fake.register_hook(hook)
    for hook in (parameter._post_accumulate_grad_hooks or {}).values():
        fake.register_post_accumulate_grad_hook(hook)


def parts_of(root):
    """Returns named_modules, named_parameters and named_buffers of a module. One traversal, several times faster."""
    parts, seen, known = [], set(), set()
    parameters: list[tuple[str, torch.Tensor]] = []
    buffers: list[tuple[str, torch.Tensor]] = []

    def walk(module, path):
        if module is None or id(module) in seen:
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
            walk(part, prefix + name)

    walk(root, "")
    return parts, parameters, buffers


OF_EVERY_MODULE = frozenset(vars(torch.nn.Module()))


def _set_attributes(module, attributes):
    for name in vars(module).keys() - attributes.keys() - OF_EVERY_MODULE:
        del vars(module)[name]
    vars(module).update(attributes)


class Converted(_C.Cleanup):
    """Replaces the tensors of a module by fake tensors, on the calling thread. Tied tensors stay tied.

    train: also sets the training mode of the module; None leaves it unchanged.
    """

    def __init__(self, module, mode, device, dtype, conversion=None, train=None):
        super().__init__()
        self._module, self._mode, self._device, self._dtype = module, mode, device, dtype
        self._conversion = Conversion() if conversion is None else conversion
        self._train, self._fakes, self._records = train, {}, {}

    def _make(self, tensor):
        if _wrappers.is_fake(tensor):
            return tensor
        known = self._fakes.get(id(tensor))
        if known is None:
            own = _wrappers.is_subclass(tensor)
            fake = self._own(tensor) if own else _wrappers.rebuilt(tensor, self._fake_part)
            was = fake.dtype
            if self._dtype is not None and fake.is_floating_point():
                fake = _moved(fake, self._dtype) if own else fake.detach().to(self._dtype)
            if isinstance(tensor, torch.nn.Parameter):
                if not own:
                    fake = torch.nn.Parameter(fake.detach(), tensor.requires_grad)
                self._conversion.note(was, fake)
                _copy_hooks(tensor, fake)
            known = self._fakes[id(tensor)] = (tensor, fake)
        return known[1]

    def _fake_part(self, part):
        return part if _C.is_fake(part) else self._from_real(part, self._device)

    def _from_real(self, part, device=None):
        # Gradients are not part of the program, and another thread may be training the module.
        return self._mode.from_real(part, device, with_gradient=False)

    def _own(self, tensor):
        """Returns the fake tensor for a tensor subclass, moved to the device by that class."""
        if not _quantizes_on_move(tensor):
            return _attributes.rebuilt(tensor, self._fake_part, self._records)
        return _moved(_attributes.rebuilt(tensor, self._from_real, self._records), torch.device(self._device))

    def _convert_attributes(self, module):
        if not any(_wrappers.is_subclass(each) for each in module._parameters.values() if each is not None):
            return
        before = {name: value for name, value in vars(module).items() if name not in OF_EVERY_MODULE}
        _thread_views.change_for_all(module, self)
        self.on_exit(_set_attributes, module, before)
        vars(module).update(_attributes.changed(before, self._fake_part, self._records))

    def _enter(self):
        modules = list(self._module.modules())
        for module in modules:
            if not isinstance(module._parameters, dict):  # TorchScript has its tensors in C++
                _thread_views.change_for_all(module, self)
        tensors = (*self._module.parameters(), *self._module.buffers())
        is_real = not all(_wrappers.is_fake(tensor) for tensor in tensors)
        for module in modules if is_real else ():
            self._refuse_real_shards(module)
            self._convert_attributes(module)
            for table in ("_parameters", "_buffers"):
                entries = getattr(module, table)
                if isinstance(entries, dict):
                    # Also without tensors: the program may register some.
                    fakes = {name: tensor if tensor is None else self._make(tensor) for name, tensor in entries.items()}
                    _thread_views.show(module, table, fakes, self)
                    continue
                for name, tensor in list(entries.items()):
                    self.on_exit(entries.__setitem__, name, tensor)
                    entries[name] = self._make(tensor)
        if self._train is not None and not is_exported(self._module):
            _thread_views.set_training(self._module, self._train, self)

    @staticmethod
    def _refuse_real_shards(module):
        """Rejects modules sharded by FSDP2, which keeps references to real tensors elsewhere."""
        fsdp = sys.modules.get("torch.distributed.fsdp")
        sharded = fsdp is not None and isinstance(module, fsdp.FSDPModule)
        if sharded and not all(_wrappers.is_fake(parameter) for parameter in module.parameters()):
            raise _C.UnsupportedError(
                f"{type(module).__name__} was sharded by fully_shard with real parameters; pass a function that "
                "creates and shards it, sg.profile(make_model, ...), or create it inside `with sg.fake(...)`"
            )
