"""Programs that use torch.distributed, as one process of many, without the others and without a network."""

import contextlib
import functools
import os
import sys

from . import _shadowgraph as _C

__all__ = ["as_rank", "fake_process_group", "ranks_of", "world_size"]


class fake_process_group:
    """Inside ``with sg.fake_process_group(8, rank=3):`` torch.distributed is set up, and this is rank 3 of 8.

    Groups, meshes (``init_device_mesh``), DistributedDataParallel, functional collectives and what is built on them go
    on as in a real program. What they send is recorded if a capture goes on, and reaches nobody. It is
    ``init_process_group(backend="fake")`` with torch's own fake backend, undone at the end of the block. Meanwhile
    DistributedDataParallel does not ask the other processes for the shapes of their parameters, and keeps no times of
    its kernels. What stages of torch.distributed.pipelining ask each other, `pipeline_shapes` answers. The environment
    says what torchrun would on machines of one device: RANK, WORLD_SIZE, LOCAL_RANK=0.

    Raises Error if torch.distributed is set up already, or has not been built in, and for a rank that is not in the
    group.
    """

    def __init__(self, world_size, rank=0):
        _check_rank(world_size, rank)
        self._size, self._rank = world_size, rank

    def __enter__(self):
        import torch
        import torch.distributed as dist

        if not dist.is_available():
            raise _C.Error("this torch was built without torch.distributed")
        if dist.is_initialized():
            raise _C.Error("torch.distributed is set up already; call destroy_process_group() first")
        from . import _pipelines

        self._excepthook = sys.excepthook  # torch puts the rank before what is raised, once a group
        _init(self._size, self._rank)
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
        _pipelines.answer_handshakes()
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
        sys.excepthook = self._excepthook


def _check_rank(world_size, rank):
    if not 0 <= rank < world_size:
        raise _C.Error(f"rank {rank} is not among {world_size} processes; give 0 to {world_size - 1}")


def _init(size, rank):
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)


def world_size():
    """How many processes there are inside `fake_process_group`; None outside, and where processes are real."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is None or not c10d.is_initialized() or c10d.get_backend() != "fake":
        return None
    return c10d.get_world_size()


class as_rank:
    """Inside ``with as_rank(2):``, within a fake process group, torch.distributed is as that rank finds it.

    The groups and meshes that are made inside are there again when it is entered again.
    """

    _TABLES = ("_pg_map", "_pg_names", "_pg_group_ranks", "_pg_backend_config", "_tags_to_pg", "_pg_to_tag")

    def __init__(self, rank):
        self.rank, self._size, self._inside = rank, world_size(), None
        _check_rank(self._size, rank)

    def __enter__(self):
        self._environment = _Environment(self._size, self.rank)
        self._outside = self._taken_away()
        if self._inside is None:
            _init(self._size, self.rank)
        else:
            self._put_back(self._inside)
        return self

    def __exit__(self, *exception):
        self._inside = self._taken_away()
        self._put_back(self._outside)
        self._environment.restore()

    @classmethod
    def _taken_away(cls):
        """What torch.distributed knows, which it then no longer does."""
        import torch.distributed.distributed_c10d as c10d

        known = {name: dict(getattr(c10d, name)) for name in cls._TABLES}
        known["_group_count"], known["_world"] = c10d._group_count, c10d._world
        for name in cls._TABLES:
            getattr(c10d, name).clear()
        c10d._group_count, c10d._world = 0, c10d._World()
        c10d._unregister_all_process_groups()
        _forget_layouts()
        return known

    @classmethod
    def _put_back(cls, known):
        import torch.distributed.distributed_c10d as c10d

        for name in cls._TABLES:
            getattr(c10d, name).update(known[name])
        c10d._group_count, c10d._world = known["_group_count"], known["_world"]
        c10d._update_default_pg(c10d._world.default_pg)
        for group, name in known["_pg_names"].items():
            c10d._register_process_group(name, group)


@contextlib.contextmanager
def in_world(size):
    """A fake process group of so many processes, or the one that is there. Raises Error if that has another size."""
    there = world_size()
    if there is None:
        if size is None:
            raise _C.Error("how many ranks are there? Give world=, or go inside `with sg.fake_process_group(size):`")
        with fake_process_group(size):
            yield size
        return
    if size not in (None, there):
        raise _C.Error(f"world={size}, inside a fake process group of {there}: leave one of them out")
    yield there


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


class AccelerateDevice:
    """Moves accelerate's record of this process's device to a pretended one, unless the program asked for the CPU."""

    def __init__(self, device):
        self._before, self._device = None, device
        for state in _accelerate_states():
            there = state.get("device")
            if there is not None and there.type != device.type and not state.get("_cpu"):
                self._before = there
                state["device"] = device

    def restore(self):
        """Records that were made meanwhile, as copies of the moved one, go back with it."""
        for state in _accelerate_states() if self._before is not None else ():
            if state.get("device") == self._device:
                state["device"] = self._before


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
