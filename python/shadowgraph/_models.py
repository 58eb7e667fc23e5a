"""Models made for a capture: a module as it is, a function that makes one, a Hugging Face configuration."""

import contextlib
import sys

import torch

from . import _schedules, _wrappers
from . import _shadowgraph as _C


def made(model, device, dtype):
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
    return module if dtype is None else module.to(dtype)


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


class Converted:
    """A module whose tensors are fakes while this is entered, and its own again afterwards.

    Nothing is copied: the entries of _parameters and _buffers are replaced, tied ones by one fake, and put back.
    """

    def __init__(self, module, mode, device, dtype):
        self._module, self._mode, self._device, self._dtype = module, mode, device, dtype
        self._entries = []
        self._fakes = {}

    def fake_of(self, tensor):
        """The fake that stands for a tensor of the module; the tensor itself if it is a fake."""
        return self._fakes.get(id(tensor), (None, tensor))[1]

    def _make(self, tensor):
        if _wrappers.is_fake(tensor):
            return tensor
        known = self._fakes.get(id(tensor))
        if known is None:
            fake = _wrappers.rebuilt(tensor, lambda part: self._mode.from_real(part, self._device))
            if self._dtype is not None and fake.is_floating_point():
                fake = fake.detach().to(self._dtype)
            if isinstance(tensor, torch.nn.Parameter):
                fake = torch.nn.Parameter(fake.detach(), tensor.requires_grad)
                _hand_hooks_on(tensor, fake)
            known = self._fakes[id(tensor)] = (tensor, fake)
        return known[1]

    def __enter__(self):
        try:
            for module in self._module.modules():
                self._refuse_real_shards(module)
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
            raise _C.RealTensorError(
                f"{type(module).__name__} was given to fully_shard with real parameters: give a function that makes "
                "it, sg.profile(make_model, ...), or make it inside `with sg.fake(...)`"
            )

    def __exit__(self, *exception):
        for entries, name, tensor in reversed(self._entries):
            entries[name] = tensor
        self._entries.clear()
