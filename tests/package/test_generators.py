"""User-created generators: captures, replays and deferred programs draw from them and advance them as eager does."""

import runpy

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint

import shadowgraph as sg

DRAWS = {
    "rand": lambda x, g: x + torch.rand(4, generator=g),
    "randn": lambda x, g: x * torch.randn(4, generator=g),
    "randperm": lambda x, g: x[torch.randperm(4, generator=g)],
    "randint": lambda x, g: x + torch.randint(9, (4,), generator=g),
    "uniform_": lambda x, g: x + torch.empty(4).uniform_(generator=g),
    "normal_": lambda x, g: x + torch.empty(4).normal_(0, 2, generator=g),
    "bernoulli": lambda x, g: torch.bernoulli(x.sigmoid(), generator=g),
    "bernoulli_": lambda x, g: x * torch.empty(4).bernoulli_(0.5, generator=g),
    "exponential_": lambda x, g: x + torch.empty(4).exponential_(generator=g),
    "multinomial": lambda x, g: x + torch.multinomial(torch.ones(9), 4, generator=g),
    "poisson": lambda x, g: torch.poisson(x.exp(), generator=g),
    "mixed": lambda x, g: torch.rand(4) + torch.rand(4, generator=g) + torch.rand(4) + torch.rand(4, generator=g),
}


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("draw", DRAWS)
def test_runs_draw_from_the_programs_generator_and_move_it(draw):
    generator = torch.Generator().manual_seed(3)
    program, x = DRAWS[draw], torch.linspace(-1, 1, 4)
    before, default = generator.get_state(), torch.random.get_rng_state()
    graph = sg.capture(lambda x: program(x, generator), "f32[4]")
    assert torch.equal(generator.get_state(), before)  # a capture does not advance the generator
    eager_generator = torch.Generator().manual_seed(3)
    torch.random.set_rng_state(default)
    eager = [program(x, eager_generator) for _ in range(3)]
    left = torch.random.get_rng_state()
    torch.random.set_rng_state(default)
    compiled = graph.compile()
    assert same([compiled(x)[0] for _ in range(3)], eager)
    assert torch.equal(generator.get_state(), eager_generator.get_state())
    assert torch.equal(torch.random.get_rng_state(), left)
    generator.manual_seed(8)
    eager_generator.manual_seed(8)
    torch.random.set_rng_state(default)
    eager = [program(x, eager_generator) for _ in range(2)]
    torch.random.set_rng_state(default)
    # running one graph advances the generator that the other draws from
    assert same([graph.copy().compile()(x)[0], compiled(x)[0]], eager)


def test_passes_keep_the_generator():
    generator = torch.Generator().manual_seed(4)
    graph = sg.capture(lambda x: x + torch.empty(4).uniform_(generator=generator).mul_(2), "f32[4]")
    graph.run_passes("functionalize,dce,cse", check=True)
    x = torch.ones(4)
    (got,) = graph.compile()(x)
    assert torch.equal(got, x + torch.rand(4, generator=torch.Generator().manual_seed(4)) * 2)


@pytest.mark.parametrize("moved", [False, True])
def test_text_keeps_its_state(moved, tmp_path):
    generator = torch.Generator().manual_seed(3)
    if moved:
        torch.randn(5, generator=generator)  # leaves a cached normal sample
    at_capture = generator.clone_state()
    graph = sg.capture(lambda x: x + torch.randn(3, generator=generator), "f32[3]")
    node = next(node for node in graph if "generator" in node.notes)
    assert node.notes["generator"] == "g0"
    text = graph.text()
    assert ('meta "generator g0" = "cpu seed 3"' in text) != moved
    assert sg.Graph.parse(text).text() == text
    assert sg.Graph.from_json(graph.json()).text() == text
    x = torch.zeros(3)
    torch.randn(100, generator=generator)  # advances an unrelated generator
    state = generator.get_state()
    eager = [torch.randn(3, generator=each) for each in (at_capture.clone_state(), at_capture)]
    compiled = sg.Graph.parse(text).compile()
    assert same([compiled(x)[0] for _ in range(2)], eager)  # each run starts from the program's generator state
    assert torch.equal(generator.get_state(), state)
    given = torch.Generator().manual_seed(9)
    compiled = sg.Graph.parse(text).compile(generators={"g0": given})
    reference = torch.Generator().manual_seed(9)
    assert same([compiled(x)[0] for _ in range(2)], [torch.randn(3, generator=reference) for _ in range(2)])
    assert torch.equal(given.get_state(), reference.get_state())


def test_what_the_program_seeds_itself_begins_anew():
    def made_inside(x):
        generator = torch.Generator().manual_seed(1)
        return x + torch.rand(3, generator=generator)

    outer = torch.Generator().manual_seed(6)

    def seeded_midway(x):
        x = x + torch.rand(3, generator=outer)
        outer.manual_seed(2)
        return x * torch.rand(3, generator=outer)

    x = torch.ones(3)
    inside = sg.capture(made_inside, "f32[3]")
    for graph in (inside, sg.Graph.parse(inside.text())):
        compiled = graph.compile()
        assert same([compiled(x)[0] for _ in range(2)], [made_inside(x) for _ in range(2)])
    state = outer.get_state()
    midway = sg.capture(seeded_midway, "f32[3]").compile()
    outer.set_state(state)
    eager = [seeded_midway(x) for _ in range(2)]
    outer.set_state(state)
    assert same([midway(x)[0] for _ in range(2)], eager)


class Masked(torch.nn.Module):
    def __init__(self, generator):
        super().__init__()
        self.first, self.second, self.generator = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8), generator

    def forward(self, x):
        x = torch.relu(self.first(x))
        return torch.relu(self.second(x * torch.empty_like(x).bernoulli_(0.5, generator=self.generator)))


def test_checkpoints_do_not_draw_from_it_again():
    def net(generator):
        torch.manual_seed(0)
        return torch.nn.Sequential(Masked(generator), Masked(generator))

    generator, reference = torch.Generator().manual_seed(3), torch.Generator().manual_seed(3)
    captured, eager = net(generator), net(reference)
    graph = sg.capture_training_step(captured, "f32[4,8]", loss=torch.sum)
    report = graph.run_passes("checkpoint{modules=*}", check=True)
    assert "kept 2 x aten::bernoulli_.float: uses a generator created by the program" in report
    x = torch.rand(4, 8)
    gradients = graph.compile(captured).run(x).gradients
    eager(x).sum().backward()
    assert all(torch.equal(gradients[name], each.grad) for name, each in eager.named_parameters())
    assert torch.equal(generator.get_state(), reference.get_state())


def test_two_generators_are_two():
    a, b = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    graph = sg.capture(lambda x: (x + torch.rand(2, generator=a), x + torch.rand(2, generator=b),
                                  x + torch.rand(2, generator=a)), "f32[2]")  # fmt: skip
    assert [node.notes.get("generator") for node in graph.find("aten::rand")] == ["g0", "g1", "g0"]
    first, second, third = graph.compile()(torch.zeros(2))
    assert torch.equal(first, second) and not torch.equal(first, third)


def test_what_has_no_way_to_say_it_is_refused(tmp_path):
    generator = torch.Generator().manual_seed(1)
    graph = sg.capture(lambda x: x + torch.rand(2, generator=generator), "f32[2]")
    for emit in (graph.emit_cpp, graph.emit_python):
        with pytest.raises(sg.UnsupportedError, match="a generator created by the program"):
            emit(tmp_path)
    with pytest.raises(sg.Error, match="a torch.Generator of the program"):
        graph.to_fx()
    damaged = sg.Graph.parse(graph.text().replace("cpu seed 3", "cpu seed 3").replace("seed 1", "seed x"))
    with pytest.raises(sg.ReplayError, match="generators="):
        damaged.compile()(torch.ones(2))
    torch.set_rng_state(torch.get_rng_state())
    default = sg.capture(lambda x: x + torch.rand(2, generator=torch.default_generator), "f32[2]")
    assert all("generator" not in node.notes for node in default)


def test_descriptions_draw_from_it_too():
    def program(g):
        a = torch.rand(4, generator=g)
        b = torch.empty(5).normal_(generator=g) + torch.rand(5)
        c = torch.randperm(6, generator=g)
        d = torch.poisson(torch.full((3,), 2.0), generator=g)
        g.manual_seed(12)
        return a, b, c, d, torch.multinomial(torch.ones(9), 3, generator=g), torch.rand(2, generator=g).tolist()

    eager_generator, generator = torch.Generator().manual_seed(3), torch.Generator().manual_seed(3)
    torch.manual_seed(5)
    *eager, eager_list = program(eager_generator)
    left = torch.get_rng_state()
    torch.manual_seed(5)
    *described, described_list = sg.deferred_init(program, generator)
    assert torch.equal(generator.get_state(), eager_generator.get_state())
    assert torch.equal(torch.get_rng_state(), left) and described_list == eager_list
    torch.rand(3, generator=generator)
    state = generator.get_state()
    for i in (4, 1, 3, 0, 2):
        assert torch.equal(sg.materialize_tensor(described[i]), eager[i])
    assert torch.equal(generator.get_state(), state)


def forked(x):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(9)
        inside = torch.rand(4)
    return x + inside, torch.rand(4)


def saved(x):
    first = torch.rand(4)
    state = torch.get_rng_state()
    second = torch.rand(2), torch.randn(3)
    torch.set_rng_state(state)
    third = torch.rand(2), torch.randn(3)
    torch.set_rng_state(state)
    return x + first, *second, *third, torch.rand(4)


def seeded_twice(x):
    torch.manual_seed(1)
    first = torch.rand(4)
    state = torch.get_rng_state()
    torch.manual_seed(1)
    second = torch.randn(5)
    torch.set_rng_state(state)
    return x * first, second, torch.rand(3)


def checkpointed(x):
    weight = torch.eye(4, requires_grad=True)

    def layer(y):
        return torch.nn.functional.dropout(y @ weight, 0.5)

    y = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)
    y = torch.utils.checkpoint.checkpoint(layer, y, use_reentrant=False)
    (gradient,) = torch.autograd.grad(y.sum(), [weight])
    return gradient, y.detach(), torch.rand(2)


OUTSIDE = torch.Generator().manual_seed(77).get_state()


def from_outside(x):
    torch.set_rng_state(OUTSIDE)
    return x + torch.rand(4), torch.rand(2)


def moved(x):
    generator = torch.Generator().manual_seed(4)
    torch.rand(4)
    torch.set_rng_state(generator.get_state())
    return x + torch.rand(4), torch.rand(4)


def unchanged(x):
    with torch.random.fork_rng(devices=[]):
        first = torch.rand(4)
    torch.set_rng_state(torch.get_rng_state())
    return x + first, torch.rand(4)


def seeded_at_the_end(x):
    first = torch.rand(4)
    torch.manual_seed(8)
    return (x + first,)


def unfaked(x):
    first = torch.rand(4)
    with sg.unfake():
        torch.manual_seed(6)
    return x + first, torch.rand(4)


SEEDING = {
    "manual_seed": lambda x: (torch.manual_seed(9), x + torch.rand(4), torch.rand(2))[1:],
    "the seed from before": lambda x: (torch.rand(2), torch.manual_seed(3), x + torch.rand(4))[2:],
    "default_generator": lambda x: (torch.default_generator.manual_seed(5), x + torch.randn(4))[1:],
    "a negative seed": lambda x: (torch.manual_seed(-2), x + torch.rand(4))[1:],
    "initial_seed": lambda x: (torch.manual_seed(9), x + torch.rand(4) + torch.initial_seed())[1:],
    **{each.__name__: each for each in (forked, saved, seeded_twice, checkpointed, from_outside, moved, unchanged,
                                        seeded_at_the_end, unfaked)},
}  # fmt: skip


@pytest.mark.parametrize("name", SEEDING)
def test_replay_of_a_program_that_seeds_itself(name, tmp_path):
    program, x = SEEDING[name], torch.ones(4) if name != "checkpointed" else torch.ones(3, 4)
    spec = "f32[4]" if name != "checkpointed" else "f32[3,4]"
    torch.manual_seed(3)
    before = torch.get_rng_state()
    eager = [program(x), program(x)]
    left = torch.get_rng_state()
    torch.set_rng_state(before)
    graph = sg.capture(program, spec)
    drawn = torch.rand(2)  # the capture drew nothing
    torch.set_rng_state(before)
    if "seed" not in name and name not in ("default_generator", "moved", "from_outside", "unfaked"):
        assert torch.equal(drawn, torch.rand(2))
    passes = graph.copy()
    passes.run_passes("functionalize,dce,cse", check=True)
    (file, *_) = graph.emit_python(tmp_path, name="emitted")
    forward = runpy.run_path(str(file))["forward"]

    def emitted(x):
        return [value for _, value in sorted(forward({"input0": x}).items())]

    parsed = [] if name == "from_outside" else [sg.Graph.parse(graph.text()).compile()]
    for run in (graph.compile(), graph.copy().compile(), passes.compile(), emitted, *parsed):
        torch.set_rng_state(before)
        assert all(same(run(x), wanted) for wanted in eager)
        assert torch.equal(torch.get_rng_state(), left)


def taken_back(x, g):
    first = torch.rand(4, generator=g)
    state = g.get_state()
    second = torch.rand(2, generator=g), torch.randn(3, generator=g)
    g.set_state(state)
    third = torch.rand(2, generator=g), torch.randn(3, generator=g)
    g.set_state(state)
    return x + first, *second, *third, torch.rand(4, generator=g)


def taken_back_to_the_beginning(x, g):
    state = g.get_state()
    first = torch.rand(4, generator=g)
    g.set_state(state)
    return x + first, torch.rand(4, generator=g), torch.rand(4)


def from_the_default_one(x, g):
    first = torch.rand(4)
    state = torch.get_rng_state()
    g.set_state(state)
    second = torch.rand(4, generator=g)
    return x + first, second, torch.rand(4), torch.rand(4, generator=g)


def to_the_default_one(x, g):
    first = torch.rand(4, generator=g)
    torch.set_rng_state(g.get_state())
    return x + first, torch.rand(4), torch.rand(4, generator=g), torch.rand(4)


def seeded_first(x, g):
    g.manual_seed(2)
    return x + torch.rand(4, generator=g), torch.rand(4, generator=g)


def seeded_and_taken_back(x, g):
    first = torch.rand(4, generator=g)
    state = g.get_state()
    g.manual_seed(5)
    second = torch.rand(4, generator=g)
    g.set_state(state)
    return x + first, second, torch.rand(4, generator=g)


def a_copy(x, g):
    first = torch.rand(4, generator=g)
    copy = g.clone_state()
    return x + first, torch.rand(4, generator=copy), torch.rand(4, generator=g)


def with_an_error(x, g):
    state = g.get_state()
    try:
        torch.rand(3, 4, generator=g) @ torch.rand(3, generator=g)
    except RuntimeError:
        g.set_state(state)
    return x + torch.rand(4, generator=g), torch.rand(2, generator=g)


OWN = (taken_back, taken_back_to_the_beginning, from_the_default_one, to_the_default_one, seeded_first,
       seeded_and_taken_back, a_copy, with_an_error)  # fmt: skip


@pytest.mark.parametrize("program", OWN, ids=lambda program: program.__name__)
def test_replay_of_a_program_that_restores_its_own_generator(program):
    generator, x = torch.Generator().manual_seed(11), torch.ones(4)
    torch.manual_seed(3)
    own, default = generator.get_state(), torch.get_rng_state()
    eager = [program(x, generator) for _ in range(2)]
    left = generator.get_state(), torch.get_rng_state()
    generator.set_state(own)
    torch.set_rng_state(default)
    graph = sg.capture(lambda x: program(x, generator), "f32[4]")
    passes = graph.copy()
    passes.run_passes("functionalize,dce,cse", check=True)
    for run in (graph.compile(), passes.compile()):
        generator.set_state(own)
        torch.set_rng_state(default)
        assert all(same(run(x), wanted) for wanted in eager)
        assert same((generator.get_state(), torch.get_rng_state()), left)
    torch.set_rng_state(default)
    elsewhere = sg.Graph.parse(graph.text()).compile()(x)
    assert all(torch.equal(got, wanted) for got, wanted in zip(elsewhere, eager[0], strict=True))


@pytest.mark.parametrize("program", OWN, ids=lambda program: program.__name__)
def test_deferred_programs_that_restore_their_own_generator(program):
    generator, reference = torch.Generator().manual_seed(11), torch.Generator().manual_seed(11)
    torch.manual_seed(3)
    default = torch.get_rng_state()
    eager = program(torch.ones(4), reference)
    left = torch.get_rng_state()
    torch.set_rng_state(default)
    deferred = sg.deferred_init(program, torch.ones(4), generator)
    assert same((generator.get_state(), torch.get_rng_state()), (reference.get_state(), left))
    assert same([sg.materialize_tensor(each) for each in deferred], eager)


def test_a_deferred_state_that_nothing_draws_from():
    own, reference = torch.Generator(), torch.Generator()
    torch.manual_seed(5)
    torch.rand(3)
    reference.set_state(torch.get_rng_state())
    torch.manual_seed(5)
    sg.deferred_init(lambda: (torch.rand(3), own.set_state(torch.get_rng_state())))
    assert torch.equal(own.get_state(), reference.get_state())
    assert torch.equal(torch.rand(4, generator=own), torch.rand(4, generator=reference))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_on_a_simulated_device_restore_its_generator(reentrant):
    def step():
        x = torch.ones(8, 4, device="cuda", requires_grad=True)
        y = x
        for _ in range(2):
            y = torch.utils.checkpoint.checkpoint(lambda v: F.dropout(v * 2, 0.5), y, use_reentrant=reentrant)
        y.sum().backward()
        return x.grad

    with sg.Capture("cuda") as session:
        graph = session.finish(step())
        assert torch.cuda.initial_seed() == torch.cuda.default_generators[0].initial_seed()
    order = [node.target for node in graph if "native_dropout" in node.target or "sg_random" in node.target]
    drawn = [name for name in order if name == "aten::native_dropout"]
    assert len(drawn) == 4 and order.count("sg_random::set_state") >= 2
    # each recomputation draws from the state that its forward began with
    states = {repr(node.args[0].producer) for node in graph.find("sg_random::set_state")}
    assert order.count("sg_random::get_state") >= 2 and len(states) >= 2


def test_states_of_a_simulated_device():
    with sg.fake("cuda"):
        torch.cuda.manual_seed(4)
        state = torch.cuda.get_rng_state()
        torch.cuda.manual_seed(5)
        torch.cuda.set_rng_state(state)
        assert torch.cuda.initial_seed() == 4 and not sg.is_fake(state) and state.numel() == 16
        with pytest.raises(RuntimeError, match="16 bytes"):
            torch.cuda.default_generators[0].set_state(torch.Generator().get_state())
