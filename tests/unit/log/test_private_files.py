"""What a node makes belongs to its user alone."""

import os
import stat
from pathlib import Path

import pytest

from tidelog.errors import InvalidTopic
from tidelog.host import Path as DiskPath
from tidelog.host import SystemDisk, replace_file, system_host
from tidelog.log.directory import DataDirectory
from tidelog.model import TopicPartition


def test_files_and_directories_are_private_whatever_the_umask(tmp_path: Path) -> None:
    mask = os.umask(0)
    try:
        disk = SystemDisk()
        disk.make_directory(DiskPath(tmp_path / "data"))
        replace_file(disk, DiskPath(tmp_path / "data" / "file"), b"content")
    finally:
        os.umask(mask)

    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "data" / "file").stat().st_mode) == 0o600


@pytest.mark.parametrize("name", ["../out", "a/b", "/etc/x", "a\0b"])
def test_no_topic_s_name_leads_out_of_the_data_directory(tmp_path: Path, name: str) -> None:
    directory = DataDirectory(system_host(), DiskPath(tmp_path))

    with pytest.raises(InvalidTopic):
        directory.path(TopicPartition(name, 0))
