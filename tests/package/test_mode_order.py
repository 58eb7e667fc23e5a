"""Contexts left too early, on another thread, or in interleaved asyncio tasks raise an error that names them."""

import asyncio
import gc
import threading

import pytest
import torch

import shadowgraph as sg
from shadowgraph import _process

KINDS = {
    "fake": lambda: sg.fake("cuda"),
    "Capture": lambda: sg.Capture("cuda"),
    "DeferredInit": sg.DeferredInit,
    "unfake": sg.unfake,
}


@pytest.fixture(autouse=True)
def nothing_is_left():
    yield
    gc.collect()
    assert not sg.is_fake(torch.ones(2)) and not torch.cuda.is_available() and not _process.flags.in_use
    assert not sg.is_fake(torch.nn.Linear(8, 8)(torch.randn(4, 8)).relu().sum())
    with sg.fake("cuda"):
        assert sg.is_fake(torch.ones(2))


@pytest.mark.parametrize("outer", KINDS)
@pytest.mark.parametrize("inner", KINDS)
def test_left_too_early(outer, inner):
    a, b = KINDS[outer](), KINDS[inner]()
    a.__enter__()
    b.__enter__()
    is_fake = sg.is_fake(torch.ones(2))
    with pytest.raises(sg.Error, match=rf"sg\.{outer}.* is left before sg\.{inner}"):
        a.__exit__(None, None, None)
    assert sg.is_fake(torch.ones(2)) == is_fake  # the inner one still applies
    with pytest.raises(sg.Error, match=rf"sg\.{outer}.* is not active"):
        a.__exit__(None, None, None)
    b.__exit__(None, None, None)
    with pytest.raises(sg.Error, match=rf"sg\.{inner}.* is not active"):
        b.__exit__(None, None, None)
    a.__enter__()
    a.__exit__(None, None, None)


def test_three_of_which_two_are_left_too_early():
    a, b, c = sg.fake("cuda"), sg.Capture(), sg.fake("cpu")
    for each in (a, b, c):
        each.__enter__()
    for each in (a, b):
        with pytest.raises(sg.Error, match="is left before"):
            each.__exit__(None, None, None)
    del a, b
    gc.collect()
    c.__exit__(None, None, None)


def test_an_exception_of_the_block_stays_its_cause():
    a, b = sg.fake("cuda"), sg.fake("cpu")
    with pytest.raises(sg.Error, match="is left before") as raised, a:
        b.__enter__()
        raise ValueError("mine")
    assert isinstance(raised.value.__context__, ValueError)
    b.__exit__(None, None, None)


@pytest.mark.parametrize("kind", KINDS)
def test_left_on_another_thread(kind):
    mode, errors = KINDS[kind](), []

    def leave():
        try:
            mode.__exit__(None, None, None)
        except sg.Error as error:
            errors.append(str(error))

    with mode:
        thread = threading.Thread(target=leave)
        thread.start()
        thread.join()
        assert sg.is_fake(torch.ones(2)) == (kind != "unfake")
    assert len(errors) == 1 and f"sg.{kind}" in errors[0] and "another thread" in errors[0]


@pytest.mark.parametrize("kind", ["fake", "Capture", "DeferredInit"])
def test_interleaved_tasks(kind):
    errors = []

    async def task(seconds):
        try:
            with KINDS[kind]():
                torch.ones(3)
                await asyncio.sleep(seconds)
                assert sg.is_fake(torch.ones(2))
        except sg.Error as error:
            errors.append(str(error))

    async def main():
        await asyncio.gather(task(0.01), task(0.03))

    asyncio.run(main())
    assert len(errors) == 1 and "asyncio" in errors[0] and f"sg.{kind}" in errors[0]


def test_a_cancelled_task():
    async def task():
        with sg.fake("cuda"):
            await asyncio.sleep(10)

    async def main():
        running = asyncio.create_task(task())
        await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(main())


def test_an_interrupt_also_ends_what_was_left_open_inside():
    with pytest.raises(KeyboardInterrupt), sg.Capture("cuda"):
        sg.fake("cpu").__enter__()
        torch.set_grad_enabled(False)
        raise KeyboardInterrupt
    assert torch.is_grad_enabled()


def test_a_region_left_in_another_capture():
    region, phase = sg.region("a"), sg.phase("optimizer")
    with sg.Capture():
        region.__enter__()
        phase.__enter__()
    with sg.Capture() as session:
        region.__exit__(None, None, None)
        phase.__exit__(None, None, None)
        with sg.region("b"):
            y = torch.ones(2) + 1
        assert "b" in session.finish(y).text()
