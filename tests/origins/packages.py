#!/usr/bin/env python3
"""Three package registries with one package each, made in memory: pip's simple index under /pypi/simple/, an npm
registry under /npm/, a sparse cargo index under /cargo/index/. Publishing succeeds and changes nothing."""

import base64
import gzip
import hashlib
import io
import json
import tarfile
import zipfile

from exchange import serve
from listening import arguments

NAME, VERSION = "openshell-tiny", "1.0.0"
MODULE = NAME.replace("-", "_")


def archive(files):
    """A .tar.gz of names and texts."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(text), 0o644
            tar.addfile(entry, io.BytesIO(text.encode()))
    return gzip.compress(packed.getvalue(), mtime=0)


def wheel():
    """The least that pip installs: a module, METADATA, WHEEL and RECORD."""
    packed, info = io.BytesIO(), f"{MODULE}-{VERSION}.dist-info"
    files = {
        f"{MODULE}.py": 'REACHED = "reached"\n',
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {VERSION}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(packed, "w") as archive_file:
        for name, text in files.items():
            archive_file.writestr(name, text)
    return packed.getvalue()


WHEEL = wheel()
WHEEL_FILE = f"{MODULE}-{VERSION}-py3-none-any.whl"
TARBALL = archive(
    {
        "package/package.json": json.dumps({"name": NAME, "version": VERSION, "main": "index.js"}),
        "package/index.js": 'module.exports = "reached";\n',
    }
)
CRATE = archive(
    {
        f"{NAME}-{VERSION}/Cargo.toml": f'[package]\nname = "{NAME}"\nversion = "{VERSION}"\nedition = "2021"\n',
        f"{NAME}-{VERSION}/src/lib.rs": '/// What it says.\npub const REACHED: &str = "reached";\n',
    }
)


async def handle(request):
    await request.body()
    site = f"https://{getattr(request, 'pseudo', {}).get(':authority') or request.header('host')}"
    path = request.path.partition("?")[0]
    if request.method not in ("GET", "HEAD"):
        return await request.answer(201, {"ok": True, "warnings": {}})
    match path.strip("/").replace("%2f", "/").split("/"):
        case ["pypi", "simple", name] if name == NAME:
            digest = hashlib.sha256(WHEEL).hexdigest()
            page = f'<!DOCTYPE html><html><body><a href="/pypi/files/{WHEEL_FILE}#sha256={digest}">{WHEEL_FILE}</a></body></html>'
            await request.answer(200, page.encode(), content_type="text/html")
        case ["pypi", "files", name] if name == WHEEL_FILE:
            await request.answer(200, WHEEL, content_type="application/zip")
        case ["npm", name] if name == NAME:
            digest = base64.b64encode(hashlib.sha512(TARBALL).digest()).decode()
            dist = {
                "tarball": f"{site}/npm/{NAME}/-/{NAME}-{VERSION}.tgz",
                "integrity": f"sha512-{digest}",
                "shasum": hashlib.sha1(TARBALL).hexdigest(),
            }
            version = {"name": NAME, "version": VERSION, "dist": dist}
            await request.answer(200, {"name": NAME, "dist-tags": {"latest": VERSION}, "versions": {VERSION: version}})
        case ["npm", name, "-", _] if name == NAME:
            await request.answer(200, TARBALL, content_type="application/octet-stream")
        case ["cargo", "index", "config.json"]:
            await request.answer(200, {"dl": f"{site}/cargo/dl", "api": f"{site}/cargo"})
        case ["cargo", "index", "op", "en", name] if name == NAME:
            line = {"name": NAME, "vers": VERSION, "deps": [], "features": {}, "yanked": False}
            line["cksum"] = hashlib.sha256(CRATE).hexdigest()
            await request.answer(200, line, content_type="text/plain")
        case ["cargo", "dl", name, _, "download"] if name == NAME:
            await request.answer(200, CRATE, content_type="application/gzip")
        case _:
            await request.answer(404, {"error": f"no {path}"})


if __name__ == "__main__":
    serve(arguments(__doc__.splitlines()[0]), handle)
