"""A tiny model for the tests of the Python binding, which need the standard library alone."""

import pathlib
import tempfile
import unittest

import quire

SOURCE = pathlib.Path(__file__).resolve().parent.parent.parent
MODEL = SOURCE / "tests" / "golden" / "models" / "text_256"
ADAPTERS = SOURCE / "tests" / "golden" / "adapters"


class WithModel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.runtime = quire.Runtime(threads=2)
        cls.model = cls.runtime.load(MODEL)

    @classmethod
    def tearDownClass(cls):
        cls.model.close()
        cls.runtime.close()

    def session(self, strategy="dca", **options):
        session = self.model.session(strategy, **options)
        self.addCleanup(session.close)
        return session

    def folder(self):
        """A directory that goes with the test."""
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        return pathlib.Path(directory.name)
