"""A loop in plain Python that can be preempted, to see the protocol without a framework."""
import os, sys, time
import aloft_job as aloft

total, step, value = int(sys.argv[1]), 0, 1
if aloft.resume_from:
    with open(aloft.resume_from) as f:
        step, value = map(int, f.read().split())
aloft.report(step=step, total=total)  # what it goes on from could be read
while step < total:
    step, value = step + 1, value * 48271 % 2147483647  # the work
    time.sleep(0.005)
    if aloft.due():
        path = os.path.join(aloft.checkpoints, f"step-{step}")
        began = time.monotonic()
        with open(path + ".tmp", "w") as f:
            f.write(f"{step} {value}")
        os.replace(path + ".tmp", path)
        aloft.saved(path, step, total, time.monotonic() - began)
    if aloft.stopping() and step < total:
        aloft.requeue()
aloft.report(step=step, total=total, result=str(value))
