"""Runs one rank of a torch.distributed program without the other ranks and without a network."""

import contextlib
import functools
import os
import sys

from . import _shadowgraph as _C
from ._shared import set_variable


class fake_process_group(_C.Context):
    """Inside ``with sg.fake_process_group(8, rank=3):`` torch.distributed is initialized as rank 3 of 8.

    Process groups, device meshes, DistributedDataParallel, functional collectives and anything built on them work as
    in a real program. Captures record their communication; nothing is sent. Uses torch's own "fake" backend, which is
    destroyed at the end of the block. DistributedDataParallel does not verify parameter shapes across processes, does
    not time kernels, and takes parameters that this rank does not use as unused on all. Shapes exchanged between stages
    of torch.distributed.pipelining come from `pipeline_shapes`.
    Sets the environment variables of torchrun for nodes with one device: RANK, WORLD_SIZE, LOCAL_RANK=0.

    Raises Error if torch.distributed is already initialized or not built in, or if `rank` is out of range.
    """

    def __init__(self, world_size, rank=0):
        super().__init__()
        _check_rank(world_size, rank)
        self._size, self._rank = world_size, rank

    def __repr__(self):
        return f"sg.fake_process_group({self._size}, rank={self._rank})"

    def _enter(self):
        import torch
        import torch.distributed as dist

        if not dist.is_available():
            raise _C.Error("this torch was built without torch.distributed")
        if dist.is_initialized():
            raise _C.Error("torch.distributed is already initialized; call destroy_process_group() first")
        from . import _pipelines

        self.set(sys, "excepthook", sys.excepthook)  # init_process_group wraps it to print the rank
        self.on_exit(_destroy_process_groups)
        self.on_exit(_restore_accelerate_states, [(state, dict(state)) for state in _accelerate_states()])
        _set_environment(self, self._size, self._rank)
        self.on_exit(_clear_dtensor_caches)
        _init(self._size, self._rank)
        for state in _accelerate_states():
            state.clear()
        # These read received data or device timers, which fake tensors do not have.
        c10d = torch._C._distributed_c10d
        reading = [(dist, "_verify_params_across_processes"), (c10d.Logger, "set_runtime_stats_and_log")]
        # Times some iterations using CUDA events if torch is built with CUDA.
        if torch.version.cuda or torch.version.hip:
            reading.append((c10d.Reducer, "prepare_for_forward"))
        for owner, name in reading:
            self.set(owner, name, lambda *arguments: None)
        _pipelines.patch_handshakes()
        _skip_random_state_sync(self)
        for name in ("__init__", "_set_static_graph"):
            _share_used_map(self, c10d.Reducer, name)
        return dist.group.WORLD


def _check_rank(world_size, rank):
    if not 0 <= rank < world_size:
        raise _C.Error(f"rank {rank} is out of range for world size {world_size}; expected 0 to {world_size - 1}")


def _init(size, rank):
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)


def _destroy_process_groups():
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()
    elif dist.distributed_c10d._pg_map:  # an interrupt has hit the line above
        _clear_process_groups()


def world_size():
    """Returns the world size inside `fake_process_group`, or None outside of it or in a real process group."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is None or not c10d.is_initialized() or c10d.get_backend() != "fake":
        return None
    return c10d.get_world_size()


class as_rank(_C.Context):
    """Inside ``with as_rank(2):``, within a fake process group, torch.distributed acts as that rank.

    Can be entered again; groups and meshes created inside are kept.
    """

    def __init__(self, rank):
        super().__init__()
        self.rank, self._size, self._inside = rank, world_size(), None
        _check_rank(self._size, rank)

    def _enter(self):
        _set_environment(self, self._size, self.rank)
        self.on_exit(_set_process_groups, _process_groups())
        if self._inside is None:
            _clear_process_groups()
            _init(self._size, self.rank)
        else:
            _set_process_groups(self._inside)
        self.on_exit(self._keep)

    def _keep(self):
        self._inside = _process_groups()


_TABLES = ("_pg_map", "_pg_names", "_pg_group_ranks", "_pg_backend_config", "_tags_to_pg", "_pg_to_tag")


def _process_groups():
    """Returns the state of torch.distributed."""
    import torch.distributed.distributed_c10d as c10d

    state = {name: dict(getattr(c10d, name)) for name in _TABLES}
    return {**state, "_group_count": c10d._group_count, "_world": c10d._world}


def _clear_process_groups():
    import torch.distributed.distributed_c10d as c10d

    for name in _TABLES:
        getattr(c10d, name).clear()
    c10d._group_count, c10d._world = 0, c10d._World()
    c10d._unregister_all_process_groups()
    _clear_dtensor_caches()


def _set_process_groups(state):
    import torch.distributed.distributed_c10d as c10d

    _clear_process_groups()
    for name in _TABLES:
        getattr(c10d, name).update(state[name])
    c10d._group_count, c10d._world = state["_group_count"], state["_world"]
    c10d._update_default_pg(c10d._world.default_pg)
    for group, name in state["_pg_names"].items():
        c10d._register_process_group(name, group)


class in_world(_C.Cleanup):
    """Enters a fake process group of this size unless one is active. Raises Error if that has another size."""

    def __init__(self, size):
        super().__init__()
        self._size = size

    def _enter(self):
        size, active = self._size, world_size()
        if active is None:
            if size is None:
                raise _C.Error("the world size is unknown; pass world=, or enter `with sg.fake_process_group(size):`")
            self.enter_context(fake_process_group(size))
            return size
        if size not in (None, active):
            raise _C.Error(f"world={size} conflicts with the active fake process group of {active} ranks; omit world=")
        return active


def _skip_random_state_sync(context):
    """Keeps DTensor's random operators from reading the device's generator state and comparing it with rank 0's."""
    from torch.distributed.tensor import _random

    tracker = _random.OffsetBasedRNGTracker
    make = tracker.__init__

    @functools.wraps(make)
    def init(self, device_mesh, run_state_sync=True):
        make(self, device_mesh, run_state_sync=False)
        self.distribute_region_enabled = False

    context.set(tracker, "__init__", init)


def _share_used_map(context, reducer, name):
    """Lets DDP assume that all ranks use the parameters that this one uses, which it exchanges in every step."""
    original = getattr(reducer, name)

    @functools.wraps(original)
    def call(self, *args, **kwargs):
        device = _C.exchange_default_device("cpu")  # the map is in pinned memory
        try:
            original(self, *args, **kwargs)
        finally:
            _C.exchange_default_device(device)
        used = self._get_local_used_map()
        if used is not None:
            _C.assume_equal_on_all_ranks(used)

    context.set(reducer, name, call)


def _set_environment(context, size, rank):
    """Sets the environment variables of torchrun, which libraries read instead of the process group."""
    variables = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1,
                 "MASTER_ADDR": "localhost", "MASTER_PORT": 29500}  # fmt: skip
    for name, value in variables.items():
        context.on_exit(set_variable, name, os.environ.get(name))
        set_variable(name, str(value))


def _accelerate_states():
    """Returns the per-process state dicts of accelerate, which contain the rank."""
    module = sys.modules.get("accelerate.state")
    if module is None:
        return []
    return [getattr(module, name)._shared_state for name in ("PartialState", "AcceleratorState", "GradientState")]


def _restore_accelerate_states(before):
    kept = {id(state): contents for state, contents in before}
    for state in _accelerate_states():
        state.clear()
        state.update(kept.get(id(state), {}))


def set_accelerate_device(device, context):
    """Sets accelerate's device to the simulated one until the context ends, unless the program selected the CPU."""
    before: list[object] = []

    def restore():  # also in states copied meanwhile
        for state in _accelerate_states() if before else ():
            if state.get("device") == device:
                state["device"] = before[-1]

    context.on_exit(restore)
    for state in _accelerate_states():
        current = state.get("device")
        if current is not None and current.type != device.type and not state.get("_cpu"):
            before.append(current)
            state["device"] = device


def _clear_dtensor_caches():
    """Clears DTensor's caches, which are keyed by mesh equality and would keep references to destroyed groups."""
    if "torch.distributed.tensor" in sys.modules:
        from torch.distributed.tensor import _random, _redistribute, debug

        debug._clear_sharding_prop_cache()
        _random._rng_tracker = None
        _redistribute._gen_transform_infos.cache_clear()


def ranks_of(name):
    """Returns the global ranks of the group with that name, in group order, or None if there is no such group."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is not None and c10d.is_initialized():
        with contextlib.suppress(KeyError, RuntimeError, ValueError):
            return c10d.get_process_group_ranks(c10d._resolve_process_group(name))
    return None
