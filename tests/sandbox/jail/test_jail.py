"""The jail, layer by layer: every test is one operation of a child that must fail, or must keep working."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cudal2_agent.sandbox.jail import kind, landlock
from cudal2_agent.sandbox.jail.entering import NOT_JAILED, Jail, Layers
from cudal2_agent.sandbox.jail.kind import Confinement, confinement
from cudal2_agent.sandbox.workers.process import Limits, child_environment, confine, run
from tests.sandbox.jail.attempts import ALL, LANDLOCK, MOUNTS, attempt, jail_of, python

HERE = confinement()
needs_landlock = pytest.mark.skipif(not HERE.landlock_abi, reason="this kernel has no Landlock")
needs_mounts = pytest.mark.skipif(not HERE.mount_namespace, reason="this system has no user namespaces")
FILE_LAYERS = [
    pytest.param(LANDLOCK, id="landlock", marks=needs_landlock),
    pytest.param(MOUNTS, id="mounts", marks=needs_mounts),
    pytest.param(ALL, id="all", marks=[needs_landlock, needs_mounts]),
]


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "home" / "secret"
    file.parent.mkdir()
    file.write_text("do-not-tell")
    return file


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("layers", FILE_LAYERS)
@pytest.mark.parametrize(
    "code",
    [
        "open({secret!r}).read()",
        "open('/etc/passwd').read()",
        "os.listdir({home!r})",
        "os.listdir('/')[0] and open('/' + 'etc/hostname').read()",
        "open({scratch!r} + '/../home/secret').read()",
        "os.symlink({secret!r}, 'link'); open('link').read()",
        "os.link({secret!r}, 'hard'); open('hard').read()",
        "open('/proc/%d/environ' % os.getppid()).read()",
        "open('/proc/self/root' + {secret!r}).read()",
        "os.chroot('..')",
    ],
)
def test_a_file_outside_is_not_read(secret: Path, scratch: Path, layers: Layers, code: str) -> None:
    text = code.format(secret=str(secret), home=str(secret.parent), scratch=str(scratch))
    outcome = attempt({"it": text}, scratch, jail_of(scratch, layers))["it"]
    assert outcome in ("EACCES", "EPERM", "ENOENT", "EXDEV"), outcome


@pytest.mark.parametrize("layers", FILE_LAYERS)
@pytest.mark.parametrize(
    "code",
    [
        "open({secret!r}, 'w')",
        "os.truncate({secret!r}, 0)",
        "os.unlink({secret!r})",
        "os.rename({secret!r}, {secret!r} + '2')",
        "os.mkdir({home!r} + '/new')",
        "open({home!r} + '/new', 'x')",
        "os.symlink('a', {home!r} + '/new')",
        "os.mkfifo({home!r} + '/new')",
        "open({python!r} + '/new', 'x')",
    ],
)
def test_nothing_outside_is_written(secret: Path, scratch: Path, layers: Layers, code: str) -> None:
    text = code.format(secret=str(secret), home=str(secret.parent), python=sys.prefix)
    outcome = attempt({"it": text}, scratch, jail_of(scratch, layers))["it"]
    assert outcome in ("EACCES", "EPERM", "ENOENT", "EROFS", "EXDEV"), outcome
    assert secret.read_text() == "do-not-tell"
    assert [path.name for path in secret.parent.iterdir()] == ["secret"]
    assert not (Path(sys.prefix) / "new").exists()


@pytest.mark.parametrize("layers", FILE_LAYERS)
def test_the_scratch_and_what_is_to_be_read_stay(scratch: Path, tmp_path: Path, layers: Layers) -> None:
    given = tmp_path / "given"
    (given / "below").mkdir(parents=True)
    (given / "below" / "file").write_text("x")
    (tmp_path / "link").symlink_to(given)
    jail = jail_of(scratch, layers)
    jail = replace(jail, read=(*(jail.read or ()), str(tmp_path / "link")))
    outcome = attempt(
        {
            "write": "Path('new').write_text('x'); os.rename('new', 'newer'); os.mkdir('folder'); os.unlink('newer')",
            "read": f"assert Path({str(given)!r}, 'below', 'file').read_text() == 'x'",
            "through a link": f"assert Path({str(tmp_path / 'link')!r}, 'below', 'file').read_text() == 'x'",
            "threads": "import threading; t = threading.Thread(target=print); t.start(); t.join()",
            "where": f"assert os.getcwd() == {str(scratch)!r}",
        },
        scratch,
        jail,
    )
    assert set(outcome.values()) == {"worked"}, outcome


@pytest.mark.parametrize("layers", [pytest.param(MOUNTS, marks=needs_mounts), pytest.param(ALL, marks=needs_mounts)])
def test_behind_mounts_a_file_that_exists_looks_like_one_that_does_not(scratch: Path, secret: Path, layers: Layers) -> None:
    tries = {name: f"os.stat({path!r})" for name, path in (("there", str(secret)), ("absent", f"{secret}-absent"))}
    assert set(attempt(tries, scratch, jail_of(scratch, layers)).values()) == {"ENOENT"}


@pytest.mark.parametrize("layers", FILE_LAYERS)
def test_nothing_in_the_scratch_is_executed(scratch: Path, layers: Layers) -> None:
    if layers == MOUNTS:
        pytest.skip("a mount namespace alone leaves that to the permissions")
    program = scratch / "program"
    program.write_bytes(Path("/bin/true").read_bytes())
    program.chmod(0o755)
    code = "import subprocess; subprocess.run(['./program'], check=True)"
    assert attempt({"it": code}, scratch, jail_of(scratch, layers))["it"] == "EACCES"


@needs_landlock
def test_a_program_that_is_started_stays_in_the_jail(scratch: Path) -> None:
    jail = jail_of(scratch, ALL)
    jail = replace(jail, read=(*(jail.read or ()), "/bin", "/usr/bin"))
    ended = python("import subprocess; print(subprocess.run(['/bin/cat', '/etc/passwd']).returncode)", scratch, jail)
    assert ended.stdout == b"1\n"


@needs_landlock
def test_a_jail_without_a_list_to_read_only_guards_what_is_written(scratch: Path, secret: Path) -> None:
    jail = Jail(write=(str(scratch),), layers=LANDLOCK)
    tries = {"read": f"open({str(secret)!r}).read()", "write": f"open({str(secret)!r}, 'w')", "own": "open('x', 'w')"}
    assert attempt(tries, scratch, jail) == {"read": "worked", "write": "EACCES", "own": "worked"}


@needs_landlock
def test_a_signal_to_the_parent_fails(scratch: Path) -> None:
    if HERE.landlock_abi < 6:
        pytest.skip("this Landlock does not scope signals")
    assert attempt({"it": "os.kill(os.getppid(), 0)"}, scratch, jail_of(scratch, LANDLOCK))["it"] == "EPERM"


@needs_landlock
def test_tcp_is_refused_besides_the_network_namespace(scratch: Path) -> None:
    if HERE.landlock_abi < 4:
        pytest.skip("this Landlock knows no network")
    code = "import socket; socket.socket().connect(('127.0.0.1', 9))"
    assert attempt({"it": code}, scratch, jail_of(scratch, LANDLOCK, sockets=True))["it"] == "EACCES"
    assert attempt({"it": code}, scratch, None)["it"] != "EACCES"


@pytest.mark.parametrize("layers", FILE_LAYERS)
def test_the_other_limits_hold_in_a_jail_too(scratch: Path, layers: Layers) -> None:
    code = "import resource; print(resource.getrlimit(resource.RLIMIT_FSIZE)[0]); open('big', 'wb').write(b'x' * 2**21)"
    ended = python(code, scratch, jail_of(scratch, layers), file_bytes=2**20)
    assert ended.stdout == b"1048576\n"
    assert (scratch / "big").stat().st_size <= 2**20


@pytest.mark.parametrize("layers", FILE_LAYERS)
def test_a_jailed_child_dies_with_its_parent(scratch: Path, layers: Layers) -> None:
    code = "import ctypes; s = ctypes.c_int(); ctypes.CDLL(None).prctl(2, ctypes.byref(s)); print(s.value)"
    assert python(code, scratch, jail_of(scratch, layers)).stdout == b"9\n"


@needs_landlock
def test_a_layer_that_is_refused_stops_the_child_before_its_command(scratch: Path) -> None:
    """Injected: the parent asks for a mount namespace where none can be made (the scratch is absent)."""
    jail = Jail(write=(str(scratch / "absent"),), read=(), layers=MOUNTS)
    ended = python("print('reached')", scratch, jail)
    assert (ended.returncode, ended.stdout) == (NOT_JAILED, b"")
    assert b"cannot be jailed" in ended.stderr


def test_no_layer_is_no_jail(scratch: Path, secret: Path) -> None:
    jail = jail_of(scratch, Layers())
    assert attempt({"it": f"open({str(secret)!r}).read()"}, scratch, jail)["it"] == "worked"


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        (Confinement(), "none"),
        (Confinement(system_calls=True), "none"),
        (Confinement(mount_namespace=True), "mount-namespace"),
        (Confinement(landlock_abi=1), "landlock"),
        (Confinement(landlock_abi=7, mount_namespace=True, system_calls=True), "landlock"),
    ],
)
def test_the_record_says_which_layer_holds_files(found: Confinement, kind: str) -> None:
    assert found.kind == kind
    assert ("every file" in found.detail) == (kind == "none")
    assert Confinement.model_validate_json(found.model_dump_json()) == found


@pytest.mark.parametrize("working", [[], ["mounts"], ["calls"], ["mounts", "calls"]])
def test_each_layer_is_said_to_work_where_it_was_tried(working: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kind, "_working", lambda: working)
    found = confinement.__wrapped__()
    assert (found.mount_namespace, found.system_calls) == ("mounts" in working, "calls" in working)


def test_what_is_said_to_work_works(scratch: Path) -> None:
    """The probe and the jail agree on this machine, whatever it has."""
    ended = python("print('reached')", scratch, jail_of(scratch, HERE.layers))
    assert (ended.returncode, ended.stdout) == (0, b"reached\n")


@needs_mounts
def test_without_user_namespaces_the_probe_says_so(tmp_path: Path) -> None:
    """Injected: the probe runs where its limit of user namespaces is zero."""
    code = (
        "import ctypes, os; libc = ctypes.CDLL(None); u, g = os.getuid(), os.getgid()\n"
        "assert libc.unshare(0x10000000) == 0\n"
        "open('/proc/self/setgroups', 'w').write('deny')\n"
        "open('/proc/self/uid_map', 'w').write(f'0 {u} 1'); open('/proc/self/gid_map', 'w').write(f'0 {g} 1')\n"
        "open('/proc/sys/user/max_user_namespaces', 'w').write('0')\n"
        "from cudal2_agent.sandbox.jail.kind import confinement\n"
        "print(confinement().mount_namespace, confinement().landlock_abi)\n"
    )
    environment = child_environment(tmp_path)
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment, check=True)
    assert ended.stdout.decode().split() == ["False", str(HERE.landlock_abi)]


@needs_landlock
def test_without_landlock_the_version_is_zero(tmp_path: Path) -> None:
    """Injected: a filter answers the system call as a kernel without Landlock does."""
    code = (
        "from cudal2_agent.sandbox.jail import landlock, syscalls\n"
        "syscalls._ALWAYS = {'landlock_create_ruleset': (444, 444)}\n"
        "syscalls.forbid(processes=True, programs=True, sockets=True); print(landlock.version())\n"
    )
    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, capture_output=True, env=child_environment(tmp_path), check=True)
    assert ended.stdout == b"0\n"


def test_rules_of_an_old_kernel_leave_out_what_it_does_not_know() -> None:
    assert landlock._known(1) & landlock.WRITE == landlock._known(5) & landlock.WRITE & ((1 << 13) - 1)
    assert landlock._known(3) & (1 << 14)
    assert not landlock._known(4) & (1 << 15)


def test_the_launcher_imports_the_standard_library_only(tmp_path: Path) -> None:
    """It runs in isolated mode, before anything is limited, so nothing of the environment may be imported there."""
    command = confine([sys.executable, "-c", "pass"], Limits(wall_s=5))
    launcher = command.index("-S") + 1
    code = f"import sys, runpy; runpy.run_path({command[launcher]!r}, run_name='x'); print(*sys.modules)"
    ended = run([sys.executable, "-I", "-S", "-c", code], scratch=tmp_path, limits=Limits(wall_s=20))
    modules = {name.partition(".")[0] for name in ended.stdout.decode().split()}
    assert modules - set(sys.stdlib_module_names) - set(sys.builtin_module_names) <= {"cudal2_agent", "__main__"}
    assert os.path.basename(command[launcher]) == "confined.py"
