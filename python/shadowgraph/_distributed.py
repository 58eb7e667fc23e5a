"""Programs that use torch.distributed, as one process of many, without the others and without a network."""

import functools
import os
import sys

from . import _shadowgraph as _C

__all__ = ["fake_process_group", "ranks_of"]


class fake_process_group:
    """Inside ``with sg.fake_process_group(8, rank=3):`` torch.distributed is set up, and this is rank 3 of 8.

    Groups, meshes (``init_device_mesh``), DistributedDataParallel, functional collectives and what is built on them go
    on as in a real program. What they send is recorded if a capture goes on, and reaches nobody. It is
    ``init_process_group(backend="fake")`` with torch's own fake backend, undone at the end of the block. Meanwhile
    DistributedDataParallel does not ask the other processes for the shapes of their parameters, and keeps no times of
    its kernels. The environment says what torchrun would on machines of one device: RANK, WORLD_SIZE, LOCAL_RANK=0.

    Raises Error if torch.distributed is set up already, or has not been built in, and for a rank that is not in the
    group.
    """

    def __init__(self, world_size, rank=0):
        if not 0 <= rank < world_size:
            raise _C.Error(f"rank {rank} is not among {world_size} processes; give 0 to {world_size - 1}")
        self._size, self._rank = world_size, rank

    def __enter__(self):
        import torch
        import torch.distributed as dist

        if not dist.is_available():
            raise _C.Error("this torch was built without torch.distributed")
        if dist.is_initialized():
            raise _C.Error("torch.distributed is set up already; call destroy_process_group() first")
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", store=FakeStore(), rank=self._rank, world_size=self._size)
        self._environment = _Environment(self._size, self._rank)
        self._singletons = [(state, dict(state)) for state in _accelerate_states()]
        for state, _ in self._singletons:
            state.clear()
        # They read what others have sent, or a device's clock: of fakes there is neither.
        c10d = torch._C._distributed_c10d
        reading = [(dist, "_verify_params_across_processes"), (c10d.Logger, "set_runtime_stats_and_log")]
        # Counts iterations, of which it times the first ten and some later ones, by CUDA events where torch has CUDA.
        if torch.version.cuda or torch.version.hip:
            reading.append((c10d.Reducer, "prepare_for_forward"))
        self._replaced = [(owner, name, getattr(owner, name)) for owner, name in reading]
        for owner, name, _ in self._replaced:
            setattr(owner, name, lambda *arguments: None)
        self._replaced.append(_keep_random_states_apart())
        return dist.group.WORLD

    def __exit__(self, *exception):
        import torch.distributed as dist

        for owner, name, original in self._replaced:
            setattr(owner, name, original)
        _forget_layouts()
        self._environment.restore()
        before = {id(state): kept for state, kept in self._singletons}
        for state in _accelerate_states():
            state.clear()
            state.update(before.get(id(state), {}))
        if dist.is_initialized():
            dist.destroy_process_group()


def _keep_random_states_apart():
    """DTensor's random operators would read the state of the device's generator, and compare it with that of rank 0."""
    from torch.distributed.tensor import _random

    tracker = _random.OffsetBasedRNGTracker
    make = tracker.__init__

    @functools.wraps(make)
    def init(self, device_mesh, run_state_sync=True):
        make(self, device_mesh, run_state_sync=False)
        self.distribute_region_enabled = False

    tracker.__init__ = init
    return tracker, "__init__", make


class _Environment:
    """What torchrun tells a process of many; libraries ask for it rather than for the group."""

    def __init__(self, size, rank):
        said = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "MASTER_ADDR": "localhost",
                "MASTER_PORT": 29500}  # fmt: skip
        self._before = {name: os.environ.get(name) for name in said}
        os.environ.update({name: str(value) for name, value in said.items()})

    def restore(self):
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _accelerate_states():
    """Dicts in which accelerate keeps, once a process, which rank this is."""
    module = sys.modules.get("accelerate.state")
    if module is None:
        return []
    return [getattr(module, name)._shared_state for name in ("PartialState", "AcceleratorState", "GradientState")]


def _forget_layouts():
    """DTensor remembers layouts by meshes that are equal, with the groups of the first, which end here."""
    if "torch.distributed.tensor" in sys.modules:
        from torch.distributed.tensor import _random, _redistribute, debug

        debug._clear_sharding_prop_cache()
        _random._rng_tracker = None
        _redistribute._gen_transform_infos.cache_clear()


def ranks_of(name):
    """Which processes the group of that name has, by rank in the group; None if torch.distributed does not know it."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is None or not c10d.is_initialized():
        return None
    try:
        return c10d.get_process_group_ranks(c10d._resolve_process_group(name))
    except (KeyError, RuntimeError, ValueError):
        return None
