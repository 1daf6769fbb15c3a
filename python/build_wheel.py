# SPDX-License-Identifier: Apache-2.0
"""Makes the wheel of the package `beringia`: its modules and, where ../build/release has it, libberingia itself. It needs
nothing but Python, so `pip install ./python` works on a facility without internet (PEP 517)."""
import base64
import hashlib
import os
import platform
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
VERSION = "0.2.0"
INFO = f"beringia-{VERSION}.dist-info"


def _files():
    for name in sorted(os.listdir(os.path.join(HERE, "beringia"))):
        if name.endswith(".py") or name == "py.typed":
            yield f"beringia/{name}", os.path.join(HERE, "beringia", name)
    library = os.environ.get("BERINGIA_LIBRARY") or os.path.join(HERE, "..", "build", "release", "libberingia.so")
    if os.path.exists(library):
        yield "beringia/libberingia.so.0", library
    else:
        print("beringia: no build/release/libberingia.so to put in; run make first, or make install", flush=True)


def _metadata():
    return (f"Metadata-Version: 2.1\nName: beringia\nVersion: {VERSION}\nRequires-Python: >=3.9\nLicense: Apache-2.0\n"
            "Summary: One language model, many supercomputers: join a run from PyTorch\n")


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    files = [(to, open(path, "rb").read()) for to, path in _files()]
    binary = any(to.endswith(".so.0") for to, _ in files)
    tag = f"py3-none-linux_{platform.machine()}" if binary else "py3-none-any"
    files.append((f"{INFO}/METADATA", _metadata().encode()))
    files.append((f"{INFO}/WHEEL", f"Wheel-Version: 1.0\nGenerator: beringia\nRoot-Is-Purelib: "
                                   f"{'false' if binary else 'true'}\nTag: {tag}\n".encode()))
    record = "".join(f"{to},sha256={base64.urlsafe_b64encode(hashlib.sha256(b).digest()).rstrip(b'=').decode()},{len(b)}\n"
                     for to, b in files) + f"{INFO}/RECORD,,\n"
    name = f"beringia-{VERSION}-{tag}.whl"
    with zipfile.ZipFile(os.path.join(wheel_directory, name), "w", zipfile.ZIP_DEFLATED) as z:
        for to, b in [*files, (f"{INFO}/RECORD", record.encode())]:
            z.writestr(zipfile.ZipInfo(to, (2020, 1, 1, 0, 0, 0)), b)
    return name


def get_requires_for_build_wheel(config_settings=None):
    return []
