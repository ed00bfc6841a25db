"""Builds the probe's wheel, the same bytes each time: a PEP 517 backend, and by hand `python3 build_wheel.py OUT`.

It owns the wheel's metadata. It needs the standard library only, and so does what it builds."""

import base64
import hashlib
import io
import os
import re
import sys
import tarfile
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
NAME = "lowtide_probe"
WHEEL = "Wheel-Version: 1.0\nGenerator: lowtide\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
ENTRY_POINTS = "[vllm.general_plugins]\nlowtide = lowtide_probe:start\n\n[sglang.srt.plugins]\nlowtide = lowtide_probe:start\n"


def version():
    with open(os.path.join(HERE, NAME, "__init__.py"), encoding="utf-8") as f:
        return re.search(r'^__version__ = "([0-9.]+)"$', f.read(), re.M).group(1)


def metadata():
    return (
        "Metadata-Version: 2.1\nName: lowtide-probe\nVersion: %s\n"
        "Summary: Tells the Lowtide collector of this host what PyTorch's allocator holds, from inside the worker\n"
        "Requires-Python: >=3.8\n" % version()
    )


def files():
    """Path in the wheel -> bytes. What stands at the top lands in site-packages, where Python looks for .pth and .start."""
    found = {}
    for name in sorted(os.listdir(os.path.join(HERE, NAME))):
        if name.endswith(".py"):
            found[NAME + "/" + name] = read(NAME, name)
    for name in (NAME + ".pth", NAME + ".start"):
        found[name] = read(name)
    return found


def read(*parts):
    with open(os.path.join(HERE, *parts), "rb") as f:
        return f.read()


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    info = "%s-%s.dist-info" % (NAME, version())
    contents = files()
    contents[info + "/METADATA"] = metadata().encode()
    contents[info + "/WHEEL"] = WHEEL.encode()
    contents[info + "/entry_points.txt"] = ENTRY_POINTS.encode()
    record = "".join("%s,sha256=%s,%d\n" % (path, digest(data), len(data)) for path, data in contents.items())
    contents[info + "/RECORD"] = (record + info + "/RECORD,,\n").encode()
    name = "%s-%s-py3-none-any.whl" % (NAME, version())
    with zipfile.ZipFile(os.path.join(wheel_directory, name), "w", zipfile.ZIP_STORED) as wheel:
        for path, data in contents.items():
            entry = zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0))
            entry.create_system, entry.external_attr = 3, 0o100644 << 16
            wheel.writestr(entry, data)
    return name


def digest(data):
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def build_sdist(sdist_directory, config_settings=None):
    root = "%s-%s" % (NAME, version())
    contents = dict(files())
    contents["PKG-INFO"] = metadata().encode()
    for name in ("pyproject.toml", "build_wheel.py"):
        contents[name] = read(name)
    with tarfile.open(os.path.join(sdist_directory, root + ".tar.gz"), "w:gz", format=tarfile.PAX_FORMAT) as sdist:
        for path, data in contents.items():
            entry = tarfile.TarInfo(root + "/" + path)
            entry.size, entry.mode = len(data), 0o644
            sdist.addfile(entry, io.BytesIO(data))
    return root + ".tar.gz"


def get_requires_for_build_wheel(config_settings=None):
    return []


def get_requires_for_build_sdist(config_settings=None):
    return []


if __name__ == "__main__":
    if len(sys.argv) != 2 or not os.path.isdir(sys.argv[1]):
        sys.exit("error: usage: build_wheel.py OUT\nhint: OUT is the folder, already there, that the wheel is written to")
    print(os.path.join(sys.argv[1], build_wheel(sys.argv[1])))
