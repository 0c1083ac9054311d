"""Link the name of an op, a layer or a model that stands as `code` on a page to its description."""

from importlib import import_module
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.transforms import SphinxTransform

from sphinx_parts.public_names import marked, offered, told_by

# not all modules: `load`, `train` and the like are words of the command line too
LINKED = ("torchcaps", "torchcaps.ops", "torchcaps.layers", "torchcaps.models", "torchcaps.integrations.sklearn")


class NameLinks(SphinxTransform):
    default_priority = 20

    def apply(self, **kwargs: Any) -> None:
        told = told_by(marked(Path(self.env.srcdir) / "api"))
        modules = [import_module(name) for name in LINKED]
        whole = {name: told[id(getattr(module, name))] for module in modules for name in offered(module)}
        for node in list(self.document.findall(nodes.literal)):
            name = node.astext().removeprefix("torchcaps.").removesuffix("()")
            if name in whole and isinstance(node.parent, nodes.paragraph | nodes.entry):
                about = {
                    "refdomain": "py",
                    "reftype": "obj",
                    "reftarget": whole[name],
                    "refexplicit": True,
                    "refwarn": True,
                }
                node.replace_self(addnodes.pending_xref("", node.deepcopy(), refdoc=self.env.docname, **about))


def setup(app: Any) -> dict[str, bool]:
    app.add_transform(NameLinks)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
