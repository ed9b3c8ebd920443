"""Builds the C extensions with CMake; everything else stands in pyproject.toml."""

import os
import pathlib
import shutil
import subprocess
import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = pathlib.Path(__file__).parent.resolve()


def find_cmake():
    """Return the CMake to use: $CMAKE, the wheel's (beside the interpreter), or the machine's."""
    beside = pathlib.Path(sys.executable).parent / "cmake"
    return os.environ.get("CMAKE") or (str(beside) if beside.exists() else "cmake")


class CMakeBuild(build_ext):
    """Lets CMakeLists.txt build each extension where setuptools wants it (also in place)."""

    def build_extension(self, ext):
        target = pathlib.Path(self.get_ext_fullpath(ext.name)).resolve()
        name = ext.name.rpartition(".")[2]
        work = pathlib.Path(self.build_temp).resolve() / f"cmake-{sys.implementation.cache_tag}-{name}"
        # A work folder of another source or another CMake cannot be used again.
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        cmake = find_cmake()
        configure = [
            *(cmake, "-S", str(ROOT), "-B", str(work)),
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-DAM_EXTENSION_DIR={target.parent}",
            f"-DCMAKE_BUILD_TYPE={'Debug' if self.debug else 'Release'}",
        ]
        target.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(configure, check=True)
        subprocess.run([cmake, "--build", str(work), "--target", name], check=True)
        if not target.exists():
            raise RuntimeError(f"CMake built no {target}")


setup(
    ext_modules=[
        Extension("alpha_mpi.store._durable", sources=["native/durable.c", "native/binding.c"]),
        Extension("alpha_mpi.model._words", sources=["native/words.c", "native/words_binding.c"]),
    ],
    cmdclass={"build_ext": CMakeBuild},
)
