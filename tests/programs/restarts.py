"""As restarts.c, with Python's ways of writing restart files. The first argument is the way; with a second one the world is
killed when step 2 is done, without it in the middle of it. A file of a step holds its number, many times."""

import gzip
import mmap
import os
import pathlib
import shutil
import signal
import struct
import sys
import time
import zipfile

HOW, DONE = sys.argv[1], len(sys.argv) > 2
DIRECTORY = pathlib.Path(os.environ["FT_CHECKPOINT_DIR"])
OUTSIDE = pathlib.Path(os.environ["OUTSIDE"])
RANK = os.environ["FT_RANK"]
BYTES = 100_000


def reach(name):
    """gate.h's."""
    path = pathlib.Path(os.environ["FT_GATE_DIR"]) / f"{name}.{RANK}"
    path.with_suffix(".draft").write_text(f"{os.getpid()}\n")
    path.with_suffix(".draft").rename(path)
    while True:
        time.sleep(1)


def content(step):
    return str(step).encode() * BYTES


def half(step):
    if step == 2 and not DONE:
        reach("writer.half")


def write(path, step, flags=os.O_WRONLY | os.O_CREAT | os.O_TRUNC):
    """In two halves."""
    with open(os.open(path, flags, 0o644), "wb", buffering=0) as file:
        file.write(content(step)[: BYTES // 2])
        half(step)
        file.write(content(step)[BYTES // 2 :])


def source(step):
    """A file elsewhere, older than everything here."""
    path = OUTSIDE / f"step.{step}"
    path.write_bytes(content(step))
    os.utime(path, (1_000_000_000, 1_000_000_000))
    return path


# Longer than anybody takes to look at a file that was closed: what happens to it afterwards happens to one that was seen.
A_WHILE = 0.1


def copy_in_halves(step):
    """shutil's copying of content, then, a while later, of times."""

    def copy(src, dst):
        with open(src, "rb") as old, open(dst, "wb", buffering=0) as new:
            new.write(old.read(BYTES // 2))
            half(step)
            shutil.copyfileobj(old, new)
        time.sleep(A_WHILE)
        shutil.copystat(src, dst)

    return copy


def plain(path, step):
    write(path, step)


def rename(path, step):
    write(path.with_suffix(".part"), step)
    os.replace(path.with_suffix(".part"), path)


def rename_directory(path, step):
    part = DIRECTORY / "part" / "deep"
    part.mkdir(parents=True)
    write(part / "field", step)
    os.rename(part.parent, path)


def rename_directory_from_outside(path, step):
    part = DIRECTORY.parent / f"part.{step}"
    part.mkdir()
    write(part / "field", step)
    os.rename(part, path)


def copy2(path, step):
    copy_in_halves(step)(source(step), path) if step == 2 else shutil.copy2(source(step), path)


def copytree(path, step):
    tree = OUTSIDE / f"tree.{step}"
    (tree / "deep").mkdir(parents=True)
    os.rename(source(step), tree / "deep" / "field")
    shutil.copytree(tree, path, **({"copy_function": copy_in_halves(step)} if step == 2 else {}))


def move(path, step):
    """Between file systems: a copy with its times."""
    shutil.move(source(step), path, **({"copy_function": copy_in_halves(step)} if step == 2 else {}))


def link(path, step):
    part = path.with_suffix(".part")
    with open(part, "wb", buffering=0) as file:
        os.link(part, path)
        file.write(content(step)[: BYTES // 2])
        half(step)
        file.write(content(step)[BYTES // 2 :])
    os.unlink(part)


def wait_whole(path, again=lambda: None):
    """Until the agent has looked at this file, and at all that was there before. Does something `again` until then."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        data, whole = DIRECTORY.with_name("ckpt.whole").read_bytes(), set()
        for says, _, inode in struct.iter_unpack("=IiQ", data[16 : len(data) // 16 * 16]):
            {1: whole.add, 2: whole.discard}.get(says, lambda _: whole.clear())(inode)
        if path.stat().st_ino in whole:
            return
        again()
        time.sleep(0.005)
    sys.exit(f"{path} is not known to be whole")


def name_taken(path, step):
    """Under two names; the one that it was seen under last is taken by another file."""
    other, taken = DIRECTORY / f"other.{step}", DIRECTORY / f"taken.{step}"
    with open(path, "wb", buffering=0) as file:
        os.link(path, taken)
        file.write(content(step)[: BYTES // 2])
        half(step)
        other.write_text("another")
        wait_whole(other)
        os.replace(other, taken)
        file.write(content(step)[BYTES // 2 :])


def tmpfile(path, step):
    with open(os.open(DIRECTORY, os.O_TMPFILE | os.O_RDWR, 0o644), "wb", buffering=0) as file:
        file.write(content(step)[: BYTES // 2])
        if step == 2 and not DONE:
            os.link(f"/proc/self/fd/{file.fileno()}", path, src_dir_fd=0, follow_symlinks=True)
            reach("writer.half")
        file.write(content(step)[BYTES // 2 :])
        os.link(f"/proc/self/fd/{file.fileno()}", path, src_dir_fd=0, follow_symlinks=True)


def truncate(path, step):
    with open(path, "wb", buffering=0) as file:
        file.write(content(step) + b"more")
        half(step)
    time.sleep(A_WHILE)
    os.truncate(path, BYTES)


def mapped(path, step):
    with open(path, "w+b") as file:
        file.truncate(BYTES)
        memory = mmap.mmap(file.fileno(), BYTES)
    memory[: BYTES // 2] = content(step)[: BYTES // 2]
    half(step)
    memory[BYTES // 2 :] = content(step)[BYTES // 2 :]
    memory.close()


def in_pieces(path, step):
    """Room first, then the second half before the first, by the kernel's own copying."""
    # Within one file system the kernel copies by itself.
    other = DIRECTORY / "other.source"
    other.write_bytes(content(step))
    with open(other, "rb") as old, open(path, "wb", buffering=0) as new:
        os.posix_fallocate(new.fileno(), 0, BYTES)
        os.copy_file_range(old.fileno(), new.fileno(), BYTES // 2, BYTES // 2, BYTES // 2)
        half(step)
        os.sendfile(new.fileno(), old.fileno(), 0, BYTES // 2)


def archive(path, step):
    """As numpy's savez and gzip do it: a member whose head is written when its length is known."""
    with zipfile.ZipFile(path, "w") as file, gzip.open(path.with_suffix(".gz"), "wb") as stream:
        for target in (file.open("field.npy", "w"), stream):
            with target:
                target.write(content(step)[: BYTES // 2])
                half(step)
                target.write(content(step)[BYTES // 2 :])
    for packed in (path, path.with_suffix(".gz")):
        os.replace(packed, DIRECTORY / "other.packed")
    path.write_bytes(content(step))


def through_link(path, step):
    """Into a directory by a link to it, which is another directory's at the next step."""
    latest = DIRECTORY / "latest"
    path.mkdir()
    (DIRECTORY / "link").symlink_to(path.name)
    os.replace(DIRECTORY / "link", latest)
    write(latest / "field", step)


def filled_at_once(path, step):
    """Directories that are filled and renamed before anybody can look."""
    for number in range(50):
        deep = DIRECTORY / f"part.{number}" / "a" / "b" / "c"
        deep.mkdir(parents=True)
        (deep / "other").write_text("another")
        os.rename(DIRECTORY / f"part.{number}", DIRECTORY / f"directory.{step}.{number}")
    deep = DIRECTORY / "part" / "a" / "b"
    deep.mkdir(parents=True)
    write(deep / "field", step)
    os.rename(DIRECTORY / "part", path)


def moved_out_and_in(path, step):
    """A directory that is moved out and, while its file is written again, moved in."""
    inside, outside = path, DIRECTORY.parent / path.name
    inside.mkdir()
    (inside / "field").write_bytes(b"an older one")
    wait_whole(inside / "field")
    os.rename(inside, outside)
    with open(outside / "field", "wb", buffering=0) as file:
        file.write(content(step)[: BYTES // 2])
        os.rename(outside, inside)
        half(step)
        file.write(content(step)[BYTES // 2 :])
    # It was whole before: whoever waits for that must not take the one for the other.
    other(step)


def inherited(path, step):
    """By a child, whose parent has the file open for as long."""
    with open(path, "wb", buffering=0) as file:
        if os.fork() == 0:
            file.write(content(step)[: BYTES // 2])
            if step == 2 and not DONE:
                time.sleep(600)
            file.write(content(step)[BYTES // 2 :])
            os._exit(0)
    if step == 2 and not DONE:
        reach("writer.half")
    os.wait()


def other(number):
    """A file of the rank's own; when it is known to be whole, ftd has looked at the processes as well. Written just after a
    helper's death it may be taken for the helper's, until it is written again."""
    path = DIRECTORY / f"other.{number}"
    path.write_text("another")
    wait_whole(path, lambda: path.write_text("another"))


def kill_alone(path, step, write_half, signal_number=signal.SIGKILL):
    """A child writes the first half, and is killed alone."""
    (done, tell), pid = os.pipe(), os.fork()
    if pid == 0:
        write_half(path, step)
        os.write(tell, b"x")
        time.sleep(600)
    os.read(done, 1)
    other(1)
    os.kill(pid, signal_number)
    os.waitpid(pid, 0)
    other(2)


def first_half(path, step, flags=os.O_WRONLY | os.O_CREAT):
    descriptor = os.open(path, flags, 0o644)
    os.write(descriptor, content(step)[: BYTES // 2])
    return descriptor


def by_child(path, step, write_half=first_half, signal_number=signal.SIGKILL):
    """As Redis writes its snapshots; but the child ends without closing."""
    if step == 2 and not DONE:
        kill_alone(path, step, write_half, signal_number)
        reach("writer.half")
    if (pid := os.fork()) == 0:
        os.write(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644), content(step))
        os._exit(0)
    os.waitpid(pid, 0)


def by_child_aborted(path, step):
    by_child(path, step, signal_number=signal.SIGABRT)


def by_child_renamed(path, step):
    """A name that the file has got already says nothing."""

    def write_half(path, step):
        first_half(path.with_suffix(".part"), step)
        os.rename(path.with_suffix(".part"), path)

    by_child(path, step, write_half)


def by_child_mapped(path, step):
    def write_half(path, step):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        os.truncate(descriptor, BYTES)
        kept.append(mmap.mmap(descriptor, BYTES))
        os.close(descriptor)
        kept[-1][: BYTES // 2] = content(step)[: BYTES // 2]

    kept = []
    by_child(path, step, write_half)


def by_child_in_place(path, step):
    """A file that is whole is written again."""
    if step == 2 and not DONE:
        path.write_bytes(b"an older one")
        wait_whole(path)
    by_child(path, step)


def by_child_of_open_file(path, step):
    """The descriptor is the parent's, too, which closes it after the child's end."""

    def write_half(path, step):
        os.write(file.fileno(), content(step)[: BYTES // 2])

    with open(path, "wb", buffering=0) as file:
        if step == 2 and not DONE:
            kill_alone(path, step, write_half)
        elif (pid := os.fork()) == 0:
            file.write(content(step))
            os._exit(0)
        else:
            os.waitpid(pid, 0)
    if step == 2 and not DONE:
        other(3)
        reach("writer.half")


def by_daemon(path, step):
    """A helper in a session of its own, whose parent has ended, writes and is killed."""
    done, tell = os.pipe()
    if (pid := os.fork()) == 0:
        os.setsid()
        if os.fork() == 0:
            if step == 2 and not DONE:
                first_half(path, step)
                os.write(tell, str(os.getpid()).encode())
                time.sleep(600)
            path.write_bytes(content(step))
            os.write(tell, b"0")
        os._exit(0)
    os.waitpid(pid, 0)
    if helper := int(os.read(done, 16)):
        other(1)
        os.kill(helper, signal.SIGKILL)
        while os.path.exists(f"/proc/{helper}"):
            time.sleep(0.001)
        other(2)
        reach("writer.half")


def by_script(path, step):
    """By programs of their own, as scripts do."""
    if step == 2 and not DONE:
        write(path, step)
    os.system(f"cp -p '{source(step)}' '{path}.part' && mv '{path}.part' '{path}'")


WAYS = {way.__name__.replace("_", "-"): way for way in
        (plain, rename, rename_directory, rename_directory_from_outside, copy2, copytree, move, link, name_taken, tmpfile, truncate,
         mapped, in_pieces, archive, through_link, filled_at_once, moved_out_and_in, inherited, by_script, by_child, by_child_aborted,
         by_child_renamed, by_child_mapped, by_child_in_place, by_child_of_open_file, by_daemon)}


def first_world():
    for step in (1, 2):
        WAYS[HOW](DIRECTORY / f"step.{step}", step)
    reach("writer.done")


def next_world():
    for path in sorted(DIRECTORY.rglob("*")):
        if path.is_file() and path.stem not in ("taken", "other"):
            held = path.read_bytes()
            steps = [step for step in (1, 2) if held == content(step)]
            print("found", *steps or [f"{path}, which is torn"], flush=True)


if RANK != "0":
    # The other rank lives on, and is killed with the world.
    time.sleep(0 if os.environ["FT_WORLD"] != "1" else 600)
elif os.environ["FT_WORLD"] == "1":
    first_world()
else:
    next_world()
