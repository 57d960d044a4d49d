"""The page and its files. They hold no data: what the page shows it asks for, with the token of its user."""

from pathlib import Path

from fastapi import APIRouter, Response
from starlette.responses import FileResponse

from millrace.model.errors import NotFoundError, not_found

_FOLDER = Path(__file__).parent / "page"
_CLIENT = Path(__file__).parent / "javascript" / "millrace.js"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".ico": "image/vnd.microsoft.icon",
    ".json": "application/json",
    ".woff2": "font/woff2",
}
_OF_PAGE = (".html", ".css", ".js", ".svg")
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def page_routes() -> APIRouter:
    """The page at /, its files under /page, and the client for JavaScript, which other pages may import."""
    routes = APIRouter(include_in_schema=False)
    files = {
        path.relative_to(_FOLDER).as_posix(): path
        for path in _FOLDER.rglob("*")
        if path.suffix in _OF_PAGE  # licences and hashes are for readers of the code
    }

    @routes.get("/")
    def page() -> Response:
        return _file(files["index.html"])

    @routes.get("/page/{name:path}")
    def file(name: str) -> Response:
        if name not in files:
            raise not_found("file of the page", name, files, "GET / is the page")
        return _file(files[name])

    @routes.get("/millrace.js")
    def client() -> Response:
        return _file(_CLIENT)

    return routes


def site_routes(folder: Path) -> APIRouter:
    """The files of a folder under /site: a web page that uses this server. Everybody may read them.

    Only files of the web are served, none whose name begins with a dot, and none that a link leads to from outside.
    """
    root = folder.resolve()
    routes = APIRouter(include_in_schema=False)

    @routes.get("/site/{name:path}")
    def file(name: str) -> Response:
        wanted = f"{name}index.html" if not name or name.endswith("/") else name
        try:
            path = (root / wanted).resolve()
            is_there = path.is_relative_to(root) and path.suffix in _TYPES and path.is_file()
        except (OSError, ValueError):  # no name of a file
            is_there = False
        if not is_there or any(part.startswith(".") for part in path.relative_to(root).parts):
            raise NotFoundError(f"the site has no file {name!r}", "GET /site/ is its first page")
        return _file(path)

    return routes


def _file(path: Path) -> Response:
    return FileResponse(path, headers={**_HEADERS, "Content-Type": _TYPES[path.suffix]})
