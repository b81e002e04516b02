"""The only doors to the outside: clock, disk, network, random and threads.

    host.py       all doors of one node, and those of a real one
    doors.py      what each door offers: the protocols that a simulated machine implements, too
    clock.py      the machine's clocks
    disk.py       its files and directories
    threads.py    threads for blocking work, in lanes
    network.py    TCP through the event loop
    handshakes.py  a server of TLS, and how many may be shaking hands
    databases.py  SQLite databases
    tasks.py      work beside everything else, that ends with its owner
    files.py      files replaced and named anew, so that a crash leaves them whole
    complaints.py  how often a log speaks of others that misbehave
    waits.py      the loop's work in slices, and work that is not broken off
    process.py    the memory and the open files of this process; the C library

Rule 1: no other room below the faces opens a file or a socket, reads a clock, draws a random
        number or starts a thread. What comes through here can be simulated; nothing else can.
Rule 2: a `File` keeps no position; every read and write says where. Files are shared between the
        event loop and the disk's threads, so a hidden position would be a race.
Rule 3: what a disk was told to write is durable only after `datasync` (bytes), `sync_directory`
        (names) or `sync_everything` returned. Nothing retries a sync that failed: the kernel may
        have dropped the pages and will call the next one a success.
"""

from tidelog.host.clock import SystemClock
from tidelog.host.databases import DiskDatabases, SystemDatabase, SystemDatabases
from tidelog.host.disk import SystemDisk, SystemFile
from tidelog.host.doors import (
    Bytes,
    Clock,
    Database,
    Databases,
    Disk,
    File,
    Lane,
    Listening,
    Network,
    Offload,
    Path,
)
from tidelog.host.files import aside_of, finish_relinks, read_file, relink, replace_file, sync_path
from tidelog.host.host import Host, system_host
from tidelog.host.network import LoopNetwork, give_up_on_silence
from tidelog.host.process import allow_many_files, keep_files_private, keep_memory
from tidelog.host.tasks import Tasks
from tidelog.host.threads import ThreadOffload
from tidelog.host.waits import in_turns, unbroken

__all__ = [
    "Bytes",
    "Clock",
    "Database",
    "Databases",
    "Disk",
    "DiskDatabases",
    "File",
    "Host",
    "Lane",
    "Listening",
    "LoopNetwork",
    "Network",
    "Offload",
    "Path",
    "SystemClock",
    "SystemDatabase",
    "SystemDatabases",
    "SystemDisk",
    "SystemFile",
    "Tasks",
    "ThreadOffload",
    "allow_many_files",
    "aside_of",
    "finish_relinks",
    "give_up_on_silence",
    "in_turns",
    "keep_files_private",
    "keep_memory",
    "read_file",
    "relink",
    "replace_file",
    "sync_path",
    "system_host",
    "unbroken",
]
