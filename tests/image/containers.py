"""Containers of docker/compose.yaml and docker/kubernetes.yaml without a container engine: private mounts, processes, host name and
network, a read-only root, the user 10001 without capabilities, and the seccomp profile of the agent. The programs are those of the build.

A test calls enter_private_namespaces() first, then creates a Network and Containers. All of it ends with the test.
"""
import ctypes
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
USER = 10001
SHARED = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "etc")
# the variables of a container that are not in its file
SYSTEM_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "LANG": "C.UTF-8"}


def enter_private_namespaces():
    """Restarts the program with a private network and private mounts, in which it may change both. An ordinary user gets a user
    namespace, in which its only id is the user of the containers."""
    os.environ["PATH"] += ":/usr/sbin:/sbin"  # `ip` and `pivot_root`, also for ordinary users
    if os.environ.get("CONTAINERS_PRIVATE") == "yes":
        run("mount", "-t", "tmpfs", "run", "/run")  # for `ip netns`
        return
    user = [] if os.geteuid() == 0 else ["--user", f"--map-user={USER}", f"--map-group={USER}", "--keep-caps"]
    os.environ["CONTAINERS_PRIVATE"] = "yes"
    os.environ["CONTAINERS_OF_ROOT"] = "no" if user else "yes"
    os.execvp("unshare", ["unshare", *user, "--mount", "--net", "--propagation", "private", sys.executable, *sys.argv])


def is_root():
    return os.environ["CONTAINERS_OF_ROOT"] == "yes"


def run(*words, check=True, **more):
    done = subprocess.run(words, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, **more)
    if check and done.returncode != 0:
        raise AssertionError(f"{shlex.join(words)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done


def wait_until(condition, describe, limit_s=120):
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {limit_s} s: " + (describe() if callable(describe) else describe))
        time.sleep(0.1)


class Network:
    """A network namespace for each container, joined by a bridge. Names are resolved by a file of hosts."""

    def __init__(self, folder, names):
        self.hosts = os.path.join(folder, "hosts")
        self.addresses = {name: f"10.88.0.{number}" for number, name in enumerate(names, 2)}
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", "containers", "type", "bridge")
        run("ip", "addr", "add", "10.88.0.1/24", "dev", "containers")
        run("ip", "link", "set", "containers", "up")
        self.add_aliases({})
        for number, name in enumerate(names):
            run("ip", "netns", "add", name)
            run("ip", "link", "add", f"c{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
            run("ip", "link", "set", f"c{number}", "master", "containers", "up")
            run("ip", "-n", name, "link", "set", "lo", "up")
            run("ip", "-n", name, "addr", "add", self.addresses[name] + "/24", "dev", "eth0")
            run("ip", "-n", name, "link", "set", "eth0", "up")

    def remove(self):
        for number, name in enumerate(self.addresses):
            run("ip", "link", "del", f"c{number}")
            run("ip", "netns", "del", name)
        run("ip", "link", "del", "containers")

    def add_aliases(self, aliases):
        """aliases: further names, as of services, and the containers to which they lead."""
        with open(self.hosts, "w", encoding="utf-8") as file:
            file.write("127.0.0.1 localhost\n")
            file.writelines(f"{self.addresses[target]} {name}\n" for name, target in aliases.items())
            file.writelines(f"{address} {name}\n" for name, address in self.addresses.items())


class Container:  # pylint: disable=too-many-instance-attributes
    """A container that runs until stop() or kill(). mounts: path in the container -> folder of the host, which a restart keeps."""

    def __init__(self, network, name, **options):
        self.network, self.name = network, name
        self.folder = options["folder"]
        self.options = {"user": USER, "capabilities": [], "tmpfs": [], "mounts": {}, "read_only": [], "read_only_root": False, "seccomp": "", **options}
        self.options["environment"] = {**SYSTEM_ENVIRONMENT, "HOSTNAME": name, **options["environment"]}
        self.log_path = os.path.join(self.folder, name + ".log")
        self.process = None

    def start(self, command=None):
        description = {**self.options, "name": self.name, "hosts": self.network.hosts, "command": command or self.options["command"]}
        path = os.path.join(self.folder, self.name + ".json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(description, file)
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(  # pylint: disable=consider-using-with
                ["nsenter", f"--net=/run/netns/{self.name}", "unshare", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child",
                 sys.executable, os.path.abspath(__file__), path], stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        return self

    def log(self):
        with open(self.log_path, errors="replace", encoding="utf-8") as file:
            return file.read()

    def first_process(self):
        """Returns the id of process 1 of the container, as seen by the test; 0 if it does not run."""
        if self.process is None:
            return 0
        try:
            with open(f"/proc/{self.process.pid}/task/{self.process.pid}/children", encoding="ascii") as file:
                return int((file.read().split() or ["0"])[0])
        except OSError:
            return 0

    def execute(self, *words, environment=None, script="", check=True, limit_s=120):
        """Runs a program within the container, as `docker exec` does. script: standard input."""
        env = {**self.options["environment"], **(environment or {})}
        user = drop_rights(self.options)
        done = subprocess.run(["nsenter", f"--target={self.first_process()}", "--mount", "--pid", "--net", "--uts", "--ipc", "--wd=/",
                               *user, *words], capture_output=True, text=True, env=env, input=script, timeout=limit_s, check=False)
        if check and done.returncode != 0:
            raise AssertionError(f"{self.name}: {shlex.join(words)}: exit {done.returncode}\n{done.stdout}{done.stderr}\n{self.log()[-3000:]}")
        return done

    def run_once(self, *words):
        """Runs the entry point with other arguments until it ends, as `docker compose run --rm` does. Returns its output."""
        before = len(self.log()) if os.path.exists(self.log_path) else 0
        code = self.start(["mycojobs", *words]).process.wait(60)
        text = self.log()[before:]
        if code != 0:
            raise AssertionError(f"{self.name}: {shlex.join(words)}: exit {code}: {text}")
        return text

    def signal(self, number):
        os.kill(self.first_process(), number)

    def stop(self, limit_s):
        self.signal(signal.SIGTERM)
        try:
            return self.process.wait(limit_s)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"{self.name} did not end within {limit_s} s of TERM:\n{self.log()[-3000:]}") from error

    def kill(self):
        """Kills process 1 of the container, which ends all others. --kill-child has no effect after the change of the user."""
        if self.process and self.process.poll() is None:
            first = self.first_process()
            if first:
                os.kill(first, signal.SIGKILL)
            else:
                self.process.kill()
            self.process.wait()


def drop_rights(options):
    """Returns the words that run a command as the user of the container, with its capabilities."""
    user = options["user"]
    ids = (f"--reuid={user}", f"--regid={user}", "--clear-groups") if is_root() else ()
    kept = "".join(f",+{name.lower()}" for name in options["capabilities"])
    return ("setpriv", *ids, "--inh-caps=-all", "--ambient-caps=-all", f"--bounding-set=-all{kept}", "--no-new-privs")


# The code below runs as process 1 of a container.


def mount(*words):
    subprocess.run(["mount", *words], check=True)


def bind(source, target):
    mount("--rbind", source, target)


def make_root(description):
    """Builds the root folder of the container, and makes it the root of this mount namespace."""
    root = "/run/root"
    os.makedirs(root, exist_ok=True)
    mount("-t", "tmpfs", "-o", "mode=755", "root", root)
    for name in SHARED:
        if os.path.islink("/" + name):
            os.symlink(os.readlink("/" + name), f"{root}/{name}")
        elif os.path.isdir("/" + name):
            os.mkdir(f"{root}/{name}")
            bind("/" + name, f"{root}/{name}")
    for path in ("proc", "dev", "sys", "tmp", "var", "run", "old", "var/lib", "var/tmp"):
        os.mkdir(f"{root}/{path}")
    os.chmod(f"{root}/var/tmp", 0o1777)
    os.chmod(f"{root}/tmp", 0o1777)
    bind("/dev", root + "/dev")
    bind("/sys", root + "/sys")
    os.makedirs(root + ROOT, exist_ok=True)
    bind(ROOT, root + ROOT)
    mount("--bind", description["hosts"], root + "/etc/hosts")
    for path in description["tmpfs"]:
        os.makedirs(root + path, exist_ok=True)
        mount("-t", "tmpfs", "-o", "mode=1777", "tmpfs", root + path)
    for path, source in description["mounts"].items():
        os.makedirs(root + path, exist_ok=True)
        bind(source, root + path)
        if path in description["read_only"]:
            mount("-o", "remount,bind,ro", root + path)
    mount("-t", "proc", "proc", root + "/proc")
    os.chdir(root)
    subprocess.run(["pivot_root", ".", "old"], check=True)
    os.chdir("/")
    subprocess.run(["umount", "--lazy", "/old"], check=True)
    os.rmdir("/old")
    if description["read_only_root"]:
        mount("-o", "remount,bind,ro", "/")


class Comparison(ctypes.Structure):
    """scmp_arg_cmp of libseccomp."""
    _fields_ = [("arg", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64)]


OPERATORS = ["", "SCMP_CMP_NE", "SCMP_CMP_LT", "SCMP_CMP_LE", "SCMP_CMP_EQ", "SCMP_CMP_GE", "SCMP_CMP_GT", "SCMP_CMP_MASKED_EQ"]


def load_seccomp(path):
    """Applies a profile in Docker's format to this process and its children."""
    with open(path, encoding="utf-8") as file:
        profile = json.load(file)
    library = ctypes.CDLL("libseccomp.so.2")
    library.seccomp_init.restype = ctypes.c_void_p
    library.seccomp_rule_add_array.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint, ctypes.c_void_p]
    library.seccomp_load.argtypes = [ctypes.c_void_p]
    context = library.seccomp_init(0x00050000 | profile["defaultErrnoRet"])
    for rule in profile["syscalls"]:
        action = 0x7FFF0000 if rule["action"] == "SCMP_ACT_ALLOW" else 0x00050000 | rule["errnoRet"]
        comparisons = [Comparison(each["index"], OPERATORS.index(each["op"]), each["value"], each.get("valueTwo", 0)) for each in rule.get("args", [])]
        array = (Comparison * max(1, len(comparisons)))(*comparisons)
        for name in rule["names"]:
            number = library.seccomp_syscall_resolve_name(name.encode())
            if number == -1:  # unknown to this version of the library, so it stays forbidden
                continue
            # Calls of other architectures cannot be expressed here and are skipped.
            library.seccomp_rule_add_array(context, action, number, len(comparisons), array)
    if library.seccomp_load(context) != 0:
        raise OSError("seccomp_load")


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        description = json.load(file)
    make_root(description)
    subprocess.run(["hostname", description["name"]], check=True)
    os.chdir(description.get("work_folder", "/"))
    command = [*drop_rights(description), *description["command"]]
    if description["seccomp"]:
        load_seccomp(description["seccomp"])
    os.execvpe(command[0], command, description["environment"])


# The files.


def text_of(*path):
    with open(os.path.join(ROOT, *path), encoding="utf-8") as file:
        return file.read()


class Image:  # pylint: disable=too-few-public-methods
    """The settings of containers in docker/Dockerfile."""

    def __init__(self):
        lines = re.sub(r"\\\n", " ", text_of("docker", "Dockerfile").rpartition("\nFROM ")[2]).splitlines()
        words = dict(line.split(None, 1) for line in lines[1:] if re.match(r"[A-Z]+ ", line))
        self.environment = dict(each.split("=", 1) for each in shlex.split(words["ENV"]))
        self.entrypoint, self.command = json.loads(words["ENTRYPOINT"]), json.loads(words["CMD"])
        self.user = int(words["USER"].split(":")[0])
        self.work_folder, self.state = words["WORKDIR"], words["VOLUME"]
        self.health = json.loads(re.search(r"CMD (\[.*\])", words["HEALTHCHECK"])[1])


def interpolate(value, variables):
    """Replaces ${NAME}, ${NAME-default}, ${NAME:-default} and ${NAME:?message} as compose does, and $$ by $."""
    if isinstance(value, dict):
        return {key: interpolate(inner, variables) for key, inner in value.items()}
    if isinstance(value, list):
        return [interpolate(inner, variables) for inner in value]
    if not isinstance(value, str):
        return value

    def replace(found):
        name, operator, rest = found["name"], found["operator"] or "", found["rest"] or ""
        if found[0] == "$$":
            return "$"
        present = name in variables and (variables[name] != "" or not operator.startswith(":"))
        if present:
            return variables[name]
        if operator.endswith("?"):
            raise AssertionError(f"{name}: {rest}")
        return rest

    return re.sub(r"\$\$|\$\{(?P<name>\w+)(?P<operator>:?[-?])?(?P<rest>[^}]*)\}", replace, value)


def new_volume(folder, user=USER):
    """Returns a new folder as a volume that gets the owner and mode of the image's state folder."""
    os.makedirs(folder)
    os.chmod(folder, 0o700)
    if is_root():
        os.chown(folder, user, user)
    return folder


def remove(folder):
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
