"""This process: its memory, its limit of open files, and the C library that sets them."""

import ctypes
import os
import resource

libc = ctypes.CDLL(None, use_errno=True)
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


def keep_memory() -> None:
    """Let the allocator keep what large reads and frames give back, up to 64 MiB.

    Otherwise glibc returns each such block to the kernel, which has to clear its pages for the
    next one: most of the cost of a read. Other C libraries have no `mallopt`, and do as they do.
    """
    mallopt = getattr(libc, "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 32 * 1024 * 1024)
        mallopt(_M_TRIM_THRESHOLD, 64 * 1024 * 1024)


def keep_files_private() -> None:
    """Let nobody but this user read what this process makes, by whatever library."""
    os.umask(0o077)


def allow_many_files() -> int:
    """Raise this process's limit of open files as far as it may go; return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
