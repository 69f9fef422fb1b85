"""The serving process: artifacts in, predictions out."""

import os

# Before numpy is imported, whose library would start a thread per core: nothing here multiplies
# matrices with it, and only a process with one thread can be forked safely.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
