"""Starts a run, watches it, and says what went wrong."""

import logging
import os
import subprocess
import sys

logging.basicConfig(level=logging.INFO)
log = logging.getLogger("launch")

token = os.getenv("HF_TOKEN")
assert token, "HF_TOKEN is not set"
project = os.environ.get("PROJECT") or "default"
log.info("project %s", project)


def probe() -> str:
    """Return the GPUs there are, or why that is not known."""
    try:
        process = subprocess.Popen(["nvidia-smi", "-L"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    except FileNotFoundError:
        return "no nvidia-smi here"
    told, _ = process.communicate()
    return told


def main() -> int:
    log.info("%s", probe())
    try:
        done = subprocess.run([sys.executable, "plain_loop.py"], check=False, stdout=subprocess.PIPE, text=True)
    except OSError as error:
        log.error("cannot start: %s", error)
        raise
    print(done.stdout)
    try:
        os.remove("lock")
    except FileNotFoundError:
        pass
    return done.returncode


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Exception:
        log.exception("the launch failed")
        raise
