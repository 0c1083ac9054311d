"""Links of a page to files beside docs/, as `../../torchcaps/ops/squash.py`, that work in the repository and the site.

With an address (`Repository` of pyproject.toml, or `make docs REPOSITORY=ADDRESS/blob/COMMIT`) they lead there.
Without one the site holds a copy of a file, and the name of a folder is no link. A file shown whole on a page
(`pages_of` in conf.py) is that page. Links of such a file are read from where it lies.
"""

import os
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.transforms import SphinxTransform


class RepositoryLinks(SphinxTransform):
    default_priority = 10  # before sphinx collects the files to copy

    def apply(self, **kwargs: Any) -> None:
        links = [*self.document.findall(addnodes.download_reference), *self.document.findall(addnodes.pending_xref)]
        for node in links:
            if node.get("reftype") == "myst" and not node["reftarget"].startswith("#"):
                self._lead(node)

    def _lead(self, node: nodes.Element) -> None:
        docs = Path(self.env.srcdir).resolve()
        target = node["reftarget"]
        if node.get("refdomain") == "doc":
            target += ".md"  # myst has taken the ending off
        page = self.env.doc2path(self.env.docname)
        written_in = Path(node.source or page)  # another file, where a page shows one
        path = (
            docs / target if node.get("refdomain") == "doc" and written_in == Path(page) else written_in.parent / target
        ).resolve()
        if not path.is_relative_to(docs.parent) or path.is_relative_to(docs) or not path.exists():
            return  # a page, or sphinx says that it is missing
        name, words = str(path.relative_to(docs.parent)), [child.deepcopy() for child in node]
        if shown := self.config.pages_of.get(name):
            about = {
                "refdomain": "doc",
                "reftarget": shown,
                "reftargetid": None,
                "reftype": "myst",
                "refexplicit": True,
            }
            node.replace_self(addnodes.pending_xref("", *words, refdoc=self.env.docname, **about))
        elif address := self.config.repository:
            node.replace_self(nodes.reference("", "", *words, refuri=f"{address.rstrip('/')}/{name}"))
        elif path.is_dir():
            node.replace_self(words)
        else:
            # from the root of the pages, as sphinx has it
            target = "/" + os.path.relpath(path, docs)
            node.replace_self(
                addnodes.download_reference("", "", *words, reftarget=target, refdoc=self.env.docname, refexplicit=True)
            )


def setup(app: Any) -> dict[str, bool]:
    app.add_config_value("repository", "", "env", (str,))
    app.add_config_value("pages_of", {}, "env", (dict,))
    app.add_transform(RepositoryLinks)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
