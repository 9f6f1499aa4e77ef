"""What is wrong with the outputs of a process under the library, beside those of a native one. Where they come from is left to the scripts."""

import child


def wrong_outputs(native: child.Outcome, ours: child.Outcome) -> list[str]:
    """A line for each thing that is wrong; every output must be the same to the bit."""
    wrong = []
    for which, outcome in (("native", native), ("under the library", ours)):
        if outcome.failure:
            wrong.append(f"{which}: {outcome.failure}: {' / '.join(outcome.stderr_tail(3))[-300:]}")
    expected, given = native.events("output"), ours.events("output")
    differing = [at for at, (one, other) in enumerate(zip(expected, given, strict=False)) if one != other]
    if differing:
        wrong.append(f"{len(differing)} of {len(expected)} outputs differ, the first is {differing[0]}")
    if len(expected) != len(given) or not expected:
        wrong.append(f"{len(given)} outputs instead of {len(expected)}")
    return wrong


def tell(name: str, native: child.Outcome, ours: child.Outcome, said: str, wrong: str) -> None:
    """A line for a part, and the last words of a process that failed."""
    times = f"{native.wall_s:.0f} s, {ours.wall_s:.0f} s"
    print(f"{'FAILED' if wrong else 'ok':8}{name} ({times}) {said}{wrong}", flush=True)
    if wrong:
        for line in ours.stderr_tail(12):
            print(f"    {line[:240]}")
