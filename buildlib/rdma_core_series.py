# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""The mails for rdma-core, which series.py writes.

Why: in the overlay, inject.cmake replaces edits of upstream's lists of files, and hooks only add
lines. But a maintainer of rdma-core expects commits that edit CMakeLists.txt, libibverbs.map.in and
debian/. These edits are generated from the names of our files and from libibverbs_mr_notify.map.

Each file hooks/series/mr/*.txt describes a mail. The file has a subject, a text, and then lines
    Files: PATTERN...              new files, at their places in upstream's tree
    Hook: NUMBER [PATH [WORD]]     a hook, or its part for PATH, or the hunks there that have WORD
If a .diff is next to a text, this mail adds the lines of the .diff to files of earlier mails. The
overlay's files already have these lines. A line with #include, or a paragraph of a CMakeLists.txt,
may name files of a later mail. Then the later mail adds this part.

For rdma-core-65 a text NAME.65.txt replaces NAME.txt, if NAME.txt exists.

Fixes of upstream's bugs are a separate series. It has a mail for each hook that is a fix, and the
mails of hooks/series/fixes/*.txt.
"""
import collections
import fnmatch
import glob
import os
import re
import shutil
import subprocess
import textwrap

import fetch
import overlay

FOLDER = os.path.join(fetch.REPO, "buildlib/hooks/series")
TOPICS = ("fixes", "mr")
MAP = os.path.join(fetch.REPO, "libibverbs/libibverbs_mr_notify.map")
# Our files that only the overlay needs, and files from which edits are generated.
NOT_SENT = {"buildlib/inject.cmake", "libibverbs/libibverbs_mr_notify.map",
            "libibverbs/libibverbs_mr_notify.symbols", "providers/README.md",
            "tests/mutations.py"}
# The folders of headers that are included as <infiniband/...> and <rdma/...>.
INCLUDED_AS = {"infiniband": "libibverbs/", "rdma": "kernel-headers/rdma/"}
# Upstream's files whose edits are generated instead of taken from a hook.
GENERATED = ("debian/libibverbs1.symbols", "debian/rules")
# Each item: (pattern of our new file, upstream's file with a list, the list's beginning). The group
# in the pattern becomes an entry of the list.
LISTS = ((r"libibverbs/((?:mr_cache/)?\w+\.cc?)", "libibverbs/CMakeLists.txt",
          "rdma_library(ibverbs "),
         (r"libibverbs/(mr_(?:all|cache|notify)\.h)", "libibverbs/CMakeLists.txt",
          "publish_headers(infiniband\n"),
         (r"kernel-headers/(rdma/\w+\.h)", "kernel-headers/CMakeLists.txt",
          "publish_internal_headers(rdma\n"),
         (r"libibverbs/man/(\S+\.md)", "libibverbs/man/CMakeLists.txt", "rdma_man_pages(\n"),
         (r"tests/(\w+\.py)", "tests/CMakeLists.txt", "rdma_python_test(tests\n"))
# Each item: (pattern of our new file, upstream's file, pattern of a place, text). If the file lacks
# the text, it is inserted after the last match of the place. {0} and {1} are groups of the first
# pattern.
INSERTED = ((r"((.+)/\w+)/CMakeLists\.txt", "CMakeLists.txt", r"\nadd_subdirectory\({1}[/)].*",
             "\nadd_subdirectory({0})"),
            (r"libibverbs/(\w+\.cmake)", "libibverbs/CMakeLists.txt",
             r"\ntarget_link_libraries\(ibverbs (?:.*\n)+?  \)\n", "\ninclude({0})\n"),
            (r".*\.cc", "CMakeLists.txt", r"\nproject\(rdma-core C", " CXX"),
            (r".*\.cc", "redhat/rdma-core.spec", r"\nBuildRequires: gcc",
             "\nBuildRequires: gcc-c++"),
            (r".*\.cc", "suse/rdma-core.spec", r"\nBuildRequires:  gcc",
             "\nBuildRequires:  gcc-c++"),
            *((r"libibverbs/man/(.*)\.7\.md", spec, r"\n%\{{_mandir\}}/man1/ibv_\*",
               "\n%{{_mandir}}/man7/ibv_mr_*")
              for spec in ("redhat/rdma-core.spec", "suse/rdma-core.spec")))
# {upstream's file: changes}. The first commit with a hook for the file also makes these changes. A
# commit may rename functions and join lines, but a hook may change only the indentation of lines.
REWRITTEN = {
    "libibverbs/cmd_ioctl.c": ((
        "&cmd->hdr))\n\t\tif (!mr_cache_retry_cmd(context, cmd))\n\t\t\treturn errno;\n",
        "&cmd->hdr) &&\n\t    !mr_cache_retry_cmd(context, cmd))\n\t\treturn errno;\n"),),
    "libibverbs/examples/devinfo.c": ((
        "\t\tprintf(\"\\t\\t\\t\\t\\tMR_REVOKE\\n%s\", ex_flags & IBV_DEVICE_MR_RECLAIM ? "
        "\"\\t\\t\\t\\t\\tMR_RECLAIM\\n\" : \"\");\n",
        "\t\tprintf(\"\\t\\t\\t\\t\\tMR_REVOKE\\n\");\n"
        "\tif (ex_flags & IBV_DEVICE_MR_RECLAIM)\n"
        "\t\tprintf(\"\\t\\t\\t\\t\\tMR_RECLAIM\\n\");\n"),),
    "libibverbs/verbs.c": (
        ("#define ibv_reg_mr_iova2 plain_reg_mr_iova2\n"
         "struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length,\n"
         "\t\t\t\tuint64_t iova, unsigned int access)\n",
         "struct ibv_mr *plain_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length,\n"
         "\t\t\t\t  uint64_t iova, unsigned int access)\n"),
        ("#undef ibv_reg_mr_iova2\n", ""))}

Hunk = collections.namedtuple("Hunk", "hook path text")


def texts(topic, upstream):
    """The texts of a topic for a version of rdma-core: {file name: path}."""
    found = {}
    for path in sorted(glob.glob(os.path.join(FOLDER, topic, "*.txt"))):
        name, _, version = os.path.basename(path).removesuffix(".txt").partition(".")
        if not version or version == overlay.version_of(upstream):
            found[name + ".txt"] = path if version else found.get(name + ".txt", path)
    return found


def covers(upstream):
    """{topic: the text of its cover letter}."""
    return {topic: texts(topic, upstream)["cover.txt"] for topic in TOPICS}


def hunks(upstream):
    """The hunks of all hooks, in order."""
    for patch in overlay.patches_of(upstream):
        for path, diff in overlay.parts(overlay.text_of(patch, upstream))[1].items():
            for text in re.split("(?m)^(?=@@ )", diff)[1:]:
                yield Hunk(os.path.basename(patch)[:4], path, text)


def added(hunk):
    """The lines that a hunk adds."""
    return "".join(re.findall(r"(?m)^\+(.*\n)", hunk.text))


def person_of_hooks():
    """The name that signed the hooks off."""
    text = fetch.read(overlay.patches_of("rdma-core")[0])
    return re.search("(?m)^Signed-off-by: (.*)$", text).group(1)


def run_patch(place, text, *options):
    """Apply a diff without fuzz."""
    done = subprocess.run(["patch", "-p1", "--fuzz=0", "--batch", "-d", place,
                           "--no-backup-if-mismatch", *options],
                          input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise overlay.OverlayError(f"does not apply:\n{done.stdout}{done.stderr}\n{text}")


def edit(place, name, function):
    """Change the text of a file by `function`."""
    path = os.path.join(place, name)
    before = fetch.read(path)
    after = function(before)
    if after != before:
        fetch.write(path, after)


class Mail:
    """A commit: its text, its new files, its hunks, and the mails of its series."""

    def __init__(self, path, author, text, new_files, of_hooks):
        self.path = path
        self.sender = author
        self.subject, _, body = text.strip().partition("\n\n")
        self.message = f"{self.subject}\n\n{body.strip()}\n\nSigned-off-by: {author}\n"
        self.new_files = new_files
        self.hunks = of_hooks
        self.topic, self.series = "", [self]

    def part(self, before):
        """The mails of the series up to this mail, or the mails after it."""
        index = self.series.index(self) + 1
        return self.series[:index] if before else self.series[index:]

    def later_lines(self):
        """The diff of the lines that this mail adds to files of earlier mails."""
        return overlay.parts(fetch.read(self.path.removesuffix(".txt") + ".diff"))[1]

    def apply(self, place, ours):
        """Make the commit's changes in a tree with the earlier mails."""
        here = [name for mail in self.part(before=True) for name in mail.new_files]
        for name in here:
            target = os.path.join(place, name)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            shutil.copy(ours[name], target)
        for mail in reversed(self.part(before=False)):
            text = "".join(diff for name, diff in mail.later_lines().items() if name in here)
            if text:
                run_patch(place, text, "--reverse")
        later = set(ours) - NOT_SENT - set(here)
        for name in here:
            edit(place, name, lambda text, name=name: without(text, name, later))
        self.apply_hunks(place)
        for name in self.new_files:
            enter(place, name)
        if any(name.endswith(".3.md") for name in self.new_files):
            nodes = nodes_of({os.path.basename(name) for name in here})
            edit(place, "libibverbs/libibverbs.map.in", lambda text: with_nodes(text, nodes))
            release = str(int(fetch.tree_version(place).partition(".")[0]) + 1)
            edit(place, "debian/libibverbs1.symbols",
                 lambda text: with_symbols(text, nodes, release))

    def apply_hunks(self, place):
        """Apply the mail's hunks to upstream's files. Then make the changes of REWRITTEN."""
        for path in dict.fromkeys(hunk.path for hunk in self.hunks):
            of_file = "".join(hunk.text for hunk in self.hunks if hunk.path == path)
            run_patch(place, f"--- a/{path}\n+++ b/{path}\n{of_file}", "--forward")
            earlier = [hunk.path for mail in self.part(before=True)[:-1] for hunk in mail.hunks]
            for old, new in REWRITTEN.get(path, ()) if path not in earlier else ():
                edit(place, path, lambda text, old=old, new=new: replaced(text, old, new))


def replaced(text, old, new):
    """Replace `old` by `new`. The text has `old` exactly once."""
    if text.count(old) != 1:
        raise overlay.OverlayError("REWRITTEN needs a file with this text exactly once:\n"
                                   f"{old}")
    return text.replace(old, new)


def without(text, name, later):
    """The text without the parts that name files of later mails."""
    def waits(part):
        named = [re.sub("^(infiniband|rdma)/", lambda found: INCLUDED_AS[found.group(1)], word)
                 for word in re.findall(r"[\w.][\w./-]*", part)]
        named += [os.path.normpath(os.path.join(os.path.dirname(name), word)) for word in named]
        return bool(later & set(named))

    if name.endswith("/CMakeLists.txt"):
        return "\n\n".join(part for part in text.split("\n\n") if not waits(part)).rstrip() + "\n"
    fewer = re.sub(r'(?m)^#include ["<]\S+[">]\n',
                   lambda line: "" if waits(line.group()) else line.group(), text)
    return fewer if fewer == text else re.sub(r"\n{3,}", "\n\n", fewer)


def enter(place, name):
    """Add a new file to the lists of files of upstream's build and packages."""
    for pattern, path, beginning in LISTS:
        found = re.fullmatch(pattern, name)
        if found:
            edit(place, path, lambda text, entry=found.group(1), beginning=beginning:
                 with_entry(text, beginning, entry))
    for pattern, path, where, new in INSERTED:
        found = re.fullmatch(pattern, name)
        if found:
            edit(place, path, lambda text, groups=found.groups(), where=where, new=new:
                 with_insertion(text, where.format(*groups), new.format(*groups)))


def with_entry(text, beginning, entry):
    """Add `entry` to a list of CMake, after the last entry that sorts before `entry`."""
    begin = text.index("\n" + beginning if "\n" + beginning in text else beginning)
    end = text.index(")\n", begin)
    lines = text[begin:end].splitlines(keepends=True)
    names = [re.match(r"  ([a-z][\w./-]+)\n", line) for line in lines]
    first = next(index for index, found in enumerate(names) if found)
    place = max([index + 1 for index, found in enumerate(names)
                 if found and found.group(1) < entry], default=first)
    lines.insert(place, f"  {entry}\n")
    return text[:begin] + "".join(lines) + text[end:]


def with_insertion(text, where, new):
    """Insert `new` after the last match of `where`, if the text lacks the line `new`."""
    if new + "\n" in text:
        return text
    places = [found.end() for found in re.finditer(where, text)]
    if not places:
        raise overlay.OverlayError(f"upstream has no place for {new.strip()}: {where}")
    return text[:places[-1]] + new + text[places[-1]:]


def nodes_of(pages):
    """[(node, its symbols that have a manual page)] of the map."""
    found = re.findall(r"(?m)^(MRNOTIFY_\S+) \{\n\tglobal:\n((?:\t\t\w+;\n)+)\} \S+;",
                       fetch.read(MAP))
    nodes = [(node, [name for name in re.findall(r"\w+", names)
                     if f"{name.lstrip('_')}.3.md" in pages]) for node, names in found]
    return [(node, names) for node, names in nodes if names]


def with_nodes(text, nodes):
    """libibverbs.map.in with these nodes before the private node."""
    text = re.sub(r"(?m)^MRNOTIFY_\S+ \{\n(?:\t.*\n)+\} \S+;\n\n", "", text)
    newest = re.findall(r"(?m)^(IBVERBS_[\d.]+) \{", text)[-1]
    before = [newest, *(node for node, _ in nodes)]
    new = "".join("".join([f"{node} {{\n\tglobal:\n", *(f"\t\t{name};\n" for name in names),
                           f"}} {parent};\n\n"])
                  for parent, (node, names) in zip(before, nodes))
    place = text.index("IBVERBS_PRIVATE_@IBVERBS_PABI_VERSION@ {")
    return text[:place] + new + text[place:]


def with_symbols(text, nodes, release):
    """debian/libibverbs1.symbols with these nodes."""
    lines = [line for line in text.splitlines(keepends=True) if "@MRNOTIFY_" not in line]
    place = max(i for i, line in enumerate(lines) if line.startswith(" IBVERBS_")) + 1
    lines[place:place] = [f" {node}@{node} {release}\n" for node, _ in nodes]
    for node, names in nodes:
        for name in names:
            new = f" {name}@{node} {release}\n"
            place = max((i for i, line in enumerate(lines)
                         if line.startswith((" _ibv_", " ibv_")) and line < new),
                        default=lines.index(next(one for one in lines if one.startswith(" _ibv_"))))
            lines.insert(place + 1, new)
    return "".join(lines)


def read_mail(path, author, upstream):
    """The mail that a text describes."""
    text = fetch.read(path)
    files = overlay.our_files(upstream, fetch.REPO)
    new_files, of_hooks = [], []
    for pattern in " ".join(re.findall("(?m)^Files: (.*)$", text)).split():
        found = sorted(set(fnmatch.filter(files, pattern)) - NOT_SENT)
        if not found:
            raise overlay.OverlayError(f"{path}: no file of ours matches {pattern}")
        new_files += found
    for words in re.findall("(?m)^Hook: (.*)$", text):
        number, place, word, *_ = (*words.split(), "", "")
        found = [hunk for hunk in hunks(upstream)
                 if hunk.hook == number and hunk.path not in GENERATED
                 and place in ("", hunk.path) and word in added(hunk)]
        if not found:
            raise overlay.OverlayError(f"{path}: no hook has this part: {words}")
        of_hooks += found
    return Mail(path, author, re.sub("(?m)^(Files|Hook): .*\n", "", text), new_files, of_hooks)


def fix_mail(path, author, upstream):
    """The mail of a hook that fixes a bug of upstream."""
    subject, _, text = fetch.read(path).partition("\n\n")
    why = re.match(r"Why: ((?:.*\n)+?)(?=[A-Z][a-z -]+: )", text).group(1)
    commit = re.search(r"(?m)^Upstream-Status: Backport \[\S+/commit/(\w+)\]$", text)
    body = textwrap.fill(re.sub(r"\s+", " ", why), 72)
    if commit:
        body = f"[ Upstream commit {commit.group(1)} ]\n\n{body}"
    number = os.path.basename(path)[:4]
    return Mail(path, author, f"{subject}\n\n{body}", [],
                [hunk for hunk in hunks(upstream) if hunk.hook == number])


def fixes(upstream):
    """The hooks that fix bugs of upstream."""
    return [path for path in overlay.patches_of(upstream)
            if re.search(r"(?m)^Upstream-Status: (Backport|Pending)", fetch.read(path))]


def mails(author=None, upstream="rdma-core"):
    """All mails: the fixes, then the others."""
    author = author or person_of_hooks()
    found = {topic: [] for topic in TOPICS}
    found["fixes"] += [fix_mail(path, author, upstream) for path in fixes(upstream)]
    for topic, of_topic in found.items():
        of_topic += [read_mail(path, author, upstream)
                     for name, path in sorted(texts(topic, upstream).items())
                     if name != "cover.txt"]
        for mail in of_topic:
            mail.topic = topic
            mail.series = of_topic
    return sum(found.values(), [])


def missing(of_all, upstream="rdma-core"):
    """Our new files and hunks of hooks that are in no mail, or in two mails."""
    brought = [name for mail in of_all for name in mail.new_files]
    taken = [hunk for mail in of_all for hunk in mail.hunks]
    lost = sorted(set(overlay.our_files(upstream, fetch.REPO)) - set(brought) - NOT_SENT)
    lost += [f"{hunk.hook} {hunk.path} {hunk.text.splitlines()[0]}" for hunk in hunks(upstream)
             if hunk not in taken and hunk.path not in GENERATED]
    return lost + [f"{one} twice" for one, times in collections.Counter(
        [*brought, *taken]).items() if times > 1]
