"""The budget store under fire: writers killed at random moments, and many writers at once.

    python benchmarks/budget_store.py [--kills 1000] [--writers 8]

A killed writer gets kill -9 at a random moment of its loop of reservations and commits. After each kill the
file is read by another process: every line that a writer was told about must be there, in order, and the total must be
within the budget. Prints one line of numbers for each part and exits with 1 at the first loss.
"""

import argparse
import multiprocessing
import multiprocessing.connection
import multiprocessing.synchronize
import os
import random
import signal
import sys
import tempfile
import time

import dpscp as dp
from dpscp.privacy import epsilon_of, gaussian_event

DELTA = 1e-6
DATASET = "made up"
NOISE = 2000.0  # so little a share that a thousand kills do not use the budget up


def write_until_killed(path: str, told: multiprocessing.connection.Connection) -> None:
    store = dp.BudgetStore.open(path, dataset=DATASET)
    while True:
        told.send("start")
        reservation = store.reserve(gaussian_event(NOISE))
        told.send(("reserve", reservation.identity))
        reservation.commit(gaussian_event(NOISE))
        told.send(("commit", reservation.identity))


def kill_writers(kills: int) -> None:
    """Each writer is forked from this process, so that a thousand of them take minutes and not an hour."""
    context = multiprocessing.get_context("fork")
    rng = random.Random(0)
    lost = unannounced = lines = journals = 0
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        done = 0
        while done < kills:
            # a new file now and then: reading checks every digest, so a file of many lines is slower
            path = os.path.join(folder, f"study-{done}.budget")
            store = dp.BudgetStore.create(path, epsilon=1.0, delta=DELTA, dataset=DATASET)
            known: list[tuple[str, str]] = []
            for _ in range(min(50, kills - done)):
                receiver, sender = context.Pipe(duplex=False)
                writer = context.Process(target=write_until_killed, args=(path, sender))
                writer.start()
                sender.close()
                receiver.recv()  # it has begun
                time.sleep(rng.uniform(0, 0.06))
                os.kill(writer.pid or 0, signal.SIGKILL)
                writer.join()
                journals += os.path.exists(path + "-journal")
                try:
                    while True:
                        message = receiver.recv()
                        if message != "start":
                            known.append(message)
                except EOFError:
                    pass
                found = [(line.kind, line.reservation) for line in store.lines()[1:]]
                extra = [line for line in found if line not in known]
                lost += sum(line not in found for line in known)
                # at most one line can have been written without its writer living to tell
                if len(extra) > 1 or store.remaining() < 0:
                    sys.exit(f"kill {done}: {len(extra)} lines nobody wrote, remaining {store.remaining()}")
                unannounced += len(extra)
                known = found
                done += 1
            lines += len(known)
    seconds = time.perf_counter() - began
    print(
        f"{kills} kills in {seconds:.0f} s: {lines} lines, {lost} lost, {unannounced} written but not told, "
        f"{journals} times a hot journal was left and rolled back, 0 overspent"
    )
    if lost:
        sys.exit(1)


def spend_everything(
    path: str, start: multiprocessing.synchronize.Barrier, noise: float, got: multiprocessing.Queue
) -> None:
    store = dp.BudgetStore.open(path, dataset=DATASET)
    start.wait()
    reserved = 0
    try:
        while True:
            store.reserve(gaussian_event(noise)).commit(gaussian_event(noise))
            reserved += 1
    except dp.BudgetError:
        got.put(reserved)


def race(writers: int, noise: float = 60.0) -> None:
    """All writers spend equal shares until nothing fits: together they must get exactly what one alone would."""
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "study.budget")
        store = dp.BudgetStore.create(path, epsilon=1.0, delta=DELTA, dataset=DATASET)
        most = next(k for k in range(1, 10_000) if epsilon_of(gaussian_event(noise, k + 1), DELTA) > 1)
        start, got = context.Barrier(writers), context.Queue()
        began = time.perf_counter()
        processes = [context.Process(target=spend_everything, args=(path, start, noise, got)) for _ in range(writers)]
        for process in processes:
            process.start()
        shares = sorted(got.get() for _ in processes)
        for process in processes:
            process.join()
        seconds = time.perf_counter() - began
        entries = len(store.ledger().entries)
        print(
            f"{writers} writers: {entries} shares spent, {most} fit; by writer {shares}; remaining epsilon "
            f"{store.remaining():.2e}; {1000 * seconds / (2 * entries):.1f} ms a line"
        )
        if entries != most or sum(shares) != most or store.remaining() < 0:
            sys.exit(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--writers", type=int, default=8)
    options = parser.parse_args()
    race(options.writers)
    kill_writers(options.kills)


if __name__ == "__main__":
    main()
