"""The page and its files. They hold no data: what the page shows it asks for, with the token of its user."""

from pathlib import Path

from fastapi import APIRouter, Response
from starlette.responses import FileResponse

from millrace.model.errors import not_found

_FOLDER = Path(__file__).parent / "page"
_CLIENT = Path(__file__).parent / "javascript" / "millrace.js"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
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
        if path.suffix in _TYPES  # licences and hashes are for readers of the code
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


def _file(path: Path) -> Response:
    return FileResponse(path, headers={**_HEADERS, "Content-Type": _TYPES[path.suffix]})
