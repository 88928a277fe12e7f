"""The job's side of Aloft's checkpoint protocol, for any framework: copy it."""
import json, os, signal, sys, time

resume_from = os.environ.get("ALOFT_RESUME_FROM", "")      # "" = from the start
checkpoints = os.environ.get("ALOFT_CHECKPOINT_DIR", ".")
interval = float(os.environ.get("ALOFT_CHECKPOINT_INTERVAL", "600"))  # seconds, advised
rank = int(os.environ.get("ALOFT_RANK", "0"))
world = int(os.environ.get("ALOFT_WORLD_SIZE", "1"))

_stop, _saved = [], [time.monotonic()]
signal.signal(signal.SIGTERM, lambda *_: _stop.append(True))
_out = open(os.environ.get("ALOFT_PROGRESS_FILE", os.devnull), "a", buffering=1)


def report(**line):
    """Tell the server: step, total, loss, message, metrics, result, checkpoint."""
    _out.write(json.dumps(line) + "\n")


def stopping():
    """The slice is wanted back: save, then call requeue()."""
    return bool(_stop)


def due():
    """It is time to save: the interval is over, or the slice is wanted back."""
    return stopping() or time.monotonic() - _saved[0] >= interval


def saved(path, step, total, seconds):
    """Report a checkpoint that is complete on the disk."""
    _saved[0] = time.monotonic()
    report(step=step, total=total, checkpoint=path, checkpoint_seconds=seconds)


def requeue():
    """End so that the job is queued again."""
    sys.exit(75)
