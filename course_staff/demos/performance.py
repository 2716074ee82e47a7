"""One kernel that plays a demo, and the pages that show what it gives: the class's and the presenter's.

The kernel begins when the server does and outlives every page, so a page that is loaded again finds all as it was. Until the
kernel is through, a page shows what is kept of the last performance.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from pathlib import Path

import voila.app
from jupyter_core.utils import ensure_async
from jupyter_server.base.handlers import JupyterHandler
from nbformat import NotebookNode
from tornado.ioloop import IOLoop
from tornado.iostream import StreamClosedError
from tornado.web import RequestHandler
from traitlets import Instance
from voila.notebook_renderer import NotebookRenderer
from voila.utils import get_page_config

from course_staff.demos.kept import digest, keep, recall
from course_staff.demos.presentation import presentation, presenter_page
from course_staff.demos.script import Demo


class Theater(voila.app.Voila):
    """Voilà with one demo, one kernel and two kinds of page."""

    demo = Instance(Demo)

    def init_handlers(self) -> list:
        """Ours stand before Voilà's."""
        self.performance = performance = _Performance(self)
        IOLoop.current().add_callback(print, f"http://127.0.0.1:{self.port}/ (Ctrl-C ends it)", flush=True)
        IOLoop.current().add_callback(performance.begin)
        ours = [
            ("/", _ClassPage, {"performance": performance}),
            ("/ready", _Ready, {"performance": performance}),
            ("/presenter", _PresenterPage, {"demo": self.demo}),
            ("/voila/api/shutdown/.*", _KernelStays),
        ]
        return [*ours, *super().init_handlers()]

    def stop(self) -> None:
        """Voilà cannot end a kernel that is just starting."""
        self.ioloop.run_sync(self.performance.end)
        super().stop()


class _Performance:
    def __init__(self, app: Theater):
        self.app = app
        self.through = asyncio.Event()
        self._news = asyncio.Condition()
        self._snippets = []
        self._notebook = presentation(app.demo)
        self._file = Path(app.notebook_path).with_suffix(".kept.json")
        self._made_from = digest(self._notebook)
        self._recalled = recall(self._file, self._made_from, self._notebook)
        self._playing = self._starting = None

    def begin(self) -> None:
        """Let the kernel begin: now, or where something can be shown without it, when that has been sent."""
        if not self._recalled:
            self._start()

    def _start(self) -> None:
        if not self._playing:
            self._playing = asyncio.ensure_future(self.perform())

    async def perform(self) -> None:
        """Start the kernel, run every cell once, and keep what they gave."""
        manager = self.app.kernel_manager
        try:
            renderer = self._renderer(_Live, self._notebook)
            await renderer.initialize()
            # At the end it may find its parent gone, and would say so where somebody has just typed Ctrl-C.
            quiet = {"extra_arguments": ["--log-level=ERROR"]}
            start = manager.start_kernel(kernel_name=self._notebook.metadata.kernelspec.name, **quiet)
            self._starting = asyncio.ensure_future(ensure_async(start))
            kernel = await asyncio.shield(self._starting)
            async for snippet, _ in renderer.generate_content_generator(kernel, manager.get_kernel(kernel)):
                self._snippets.append(snippet)
                await self._tell()
            keep(self._file, self._made_from, renderer.played)
        finally:
            self.through.set()
            await self._tell()

    async def end(self) -> None:
        """Run no further cell; returns when the kernel is there to be shut down, if it ever began."""
        if self._playing:
            self._playing.cancel()
            begun = [self._playing, self._starting] if self._starting else [self._playing]
            await asyncio.gather(*begun, return_exceptions=True)

    async def page(self) -> AsyncGenerator[str, None]:
        """What the class sees: of this kernel, where it is through or nothing is kept; else of the last one."""
        if self._recalled and not self.through.is_set():
            renderer = self._renderer(_Recalled, self._recalled)
            await renderer.initialize()
            async for snippet, _ in renderer.generate_content_generator():
                yield snippet
            self._start()
            return
        sent = 0
        while sent < len(self._snippets) or not self.through.is_set():
            async with self._news:
                while sent == len(self._snippets) and not self.through.is_set():
                    await self._news.wait()
            for snippet in self._snippets[sent:]:
                yield snippet
                sent += 1

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()

    def _renderer(self, kind: type, notebook: NotebookNode) -> NotebookRenderer:
        app = self.app
        common = {"base_url": app.base_url, "voila_configuration": app.voila_configuration}
        return kind(
            notebook,
            **common,
            traitlet_config=app.config,
            notebook_path=app.notebook_path,
            template_paths=app.template_paths,
            config_manager=app.config_manager,
            contents_manager=app.contents_manager,
            kernel_spec_manager=app.kernel_spec_manager,
            page_config=get_page_config(**common, settings=app.app.settings, log=app.log),
        )


class _Live(NotebookRenderer):
    """Runs the cells of a notebook, and remembers them with what they gave."""

    def __init__(self, notebook: NotebookNode, **rest):
        super().__init__(**rest)
        self._given = notebook
        self.played = []

    async def load_notebook(self, path):
        return self._given

    async def _jinja_cell_generator(self, nb, kernel_id):
        async for cell in super()._jinja_cell_generator(nb, kernel_id):
            self.played.append(cell)
            yield cell


class _Recalled(_Live):
    """Shows the cells with the outputs that they have; no kernel takes part."""

    async def _jinja_kernel_start(self, nb, kernel_id, kernel_future):
        return None

    async def _jinja_cell_generator(self, nb, kernel_id):
        for cell in nb.cells:
            yield cell


class _Page(RequestHandler):
    def set_default_headers(self):
        self.set_header("Cache-Control", "no-store")


class _ClassPage(_Page):
    def initialize(self, performance):
        self.performance = performance

    async def get(self):
        with suppress(StreamClosedError):  # loaded again, or closed, before all of it was there
            async with aclosing(self.performance.page()) as page:
                async for snippet in page:
                    self.write(snippet)
                    await self.flush()


class _PresenterPage(_Page):
    def initialize(self, demo):
        self.demo = demo

    def get(self):
        self.write(presenter_page(self.demo))


class _Ready(_ClassPage):
    """Answers when the kernel is through."""

    async def get(self):
        await self.performance.through.wait()
        self.set_status(204)


class _KernelStays(JupyterHandler):
    """A page that goes asks for its kernel's end; ours is shared by all pages, and ends with the server."""

    def check_xsrf_cookie(self):
        return None

    def post(self):
        self.set_status(204)
