"""Simulates computation, sends and receives of pipeline stages.

Computation and messages are in order. Sends and receives block until the message has arrived.
"""

import collections


def run(programs):
    """Returns the time in seconds until the last stage is done.

    A program is a list of ("compute", seconds), ("send", to stage, tag, seconds) and ("receive", from stage, tag).
    """
    at = [0] * len(programs)
    now = [0.0] * len(programs)
    waiting = {}  # {(sender, receiver, tag): (stage that arrived first, time)}
    ready = collections.deque(range(len(programs)))
    while ready:
        stage = ready.popleft()
        while at[stage] < len(programs[stage]):
            what, *rest = programs[stage][at[stage]]
            if what == "compute":
                now[stage] += rest[0]
            else:
                other, tag = rest[:2]
                key = (stage, other, tag) if what == "send" else (other, stage, tag)
                seconds = rest[2] if what == "send" else waiting.get(key, (None, 0.0))[1]
                if key not in waiting:
                    waiting[key] = (stage, rest[2] if what == "send" else 0.0)
                    break
                del waiting[key]
                now[stage] = now[other] = max(now[stage], now[other]) + seconds
                at[other] += 1
                ready.append(other)
            at[stage] += 1
    if waiting:
        raise ValueError(f"deadlock between stages: {sorted(waiting)}")
    return max(now)


def deepspeed(stages, micro_batches, forward, backward, send):
    """Returns the programs of DeepSpeed's TrainSchedule, from times of forward, backward and a message in seconds."""
    valid = lambda batch: 0 <= batch < micro_batches  # noqa: E731
    programs = []
    for stage in range(stages):
        program, before = [], -1
        for step in range(2 * (micro_batches + stages - 1)):
            forwards = step % 2 == stage % 2
            batch = step // 2 - stage // 2 if forwards else step // 2 - stages + 1 + stage // 2
            if forwards and stage > 0:
                program += [("receive", stage - 1, ("F", batch))] if valid(batch) else []
                program += [("send", stage - 1, ("B", before), send)] if valid(before) else []
            elif not forwards and stage + 1 < stages:
                program += [("send", stage + 1, ("F", before), send)] if valid(before) else []
                program += [("receive", stage + 1, ("B", batch))] if valid(batch) else []
            if valid(batch):
                program.append(("compute", forward[stage] if forwards else backward[stage]))
            before = batch
        if stage > 0 and valid(before):
            program.append(("send", stage - 1, ("B", before), send))
        programs.append(program)
    return programs
