"""The tests that fsspec has for every file system."""

import os

import pytest

pytest.importorskip("fsspec")
import fsspec  # noqa: E402
from fsspec.tests.abstract import (  # noqa: E402
    AbstractCopyTests,
    AbstractFixtures,
    AbstractGetTests,
    AbstractOpenTests,
    AbstractPipeTests,
    AbstractPutTests,
)


class Fixtures(AbstractFixtures):
    @pytest.fixture
    def fs(self, grid):
        return fsspec.filesystem("ckpt", grid=grid.file)

    @pytest.fixture
    def fs_path(self):
        return "abstract"

    @pytest.fixture
    def fs_join(self):
        return lambda *parts: os.path.join(*parts)

    @pytest.fixture
    def supports_empty_directories(self):
        return False


class TestCopy(AbstractCopyTests, Fixtures):
    pass


class TestGet(AbstractGetTests, Fixtures):
    pass


class TestPut(AbstractPutTests, Fixtures):
    pass


class TestOpen(AbstractOpenTests, Fixtures):
    pass


class TestPipe(AbstractPipeTests, Fixtures):
    pass
