"""The engine's attention backends and whether each takes a tree mask in TARGET_VERIFY. Standard library only."""

from __future__ import annotations

import ast
import re
from typing import List, Optional, Tuple

from ddtree_deploy.survey.masks import MaskUse, mask_use
from ddtree_deploy.survey.model import Backend, Evidence
from ddtree_deploy.survey.source import Module, Source, classes, constant, imports, last_name

YES, TREE_ONLY, NO, WRAPPED, UNKNOWN = "yes", "only if topk > 1", "no", "as wrapped", "unknown"
_REGISTRY = "srt/layers/attention/attention_registry.py"
_FOLDER = "srt/layers/attention"
_DECORATOR = "register_attention_backend"
_HELPERS = re.compile(r"Draft|MultiStep")  # they run the draft model's steps, not the target's verification
_ONLY_CHAIN = re.compile(r"(?i)only support\w* topk\b|support topk > 1")
_PREPARE = "init_forward_metadata"  # where a backend is told of the batch, and so of its mask
_MAX_EVIDENCE = 8

Owned = Tuple[Module, ast.ClassDef]
Target = Tuple[str, str, Optional[Owned]]  # name for the user, name of the class, the class


def find_backends(source: Source) -> List[Backend]:
    """Registered backends in the registry's order, then classes that wrap others or keep a state instead of a cache."""
    registry = source.module(f"{source.package}/{_REGISTRY}")
    targets = _registered(source, registry) if registry is not None else []
    seen = {class_name for _, class_name, _ in targets}
    targets += [target for target in _others(source, registry) if target[1] not in seen]
    return [_judge(source, *target) for target in targets]


def _registered(source: Source, registry: Module) -> List[Target]:
    found: List[Target] = []
    for function in registry.tree.body:
        for decorator in function.decorator_list if isinstance(function, ast.FunctionDef) else ():
            if isinstance(decorator, ast.Call) and last_name(decorator) == _DECORATOR and decorator.args:
                name = constant(decorator.args[0])
                if name is not None:
                    found += _made_by(source, registry, function, name)
    return found


def _made_by(
    source: Source, registry: Module, function: ast.AST, name: str, seen: Tuple[ast.AST, ...] = ()
) -> List[Target]:
    """The backend classes that a registered factory can return, by its imports."""
    known = imports(registry)
    returned = [node.value for node in ast.walk(function) if isinstance(node, ast.Return) and node.value is not None]
    made = [last_name(value) for value in returned if isinstance(value, ast.Call)]
    factories = {node.name: node for node in registry.tree.body if isinstance(node, ast.FunctionDef)}
    seen = (*seen, function)
    for other in (factories[alias] for alias in made if alias in factories and factories[alias] not in seen):
        return _made_by(source, registry, other, name, seen)  # another name for the same backend
    made = [alias for alias in dict.fromkeys(made) if alias in known]
    if not made:  # bound to a variable first, or chosen among several
        made = [alias for alias, origin in imports(registry, function).items() if origin[1].endswith("Backend")]
    targets: List[Target] = [(name, known[alias][1], source.resolve(*known[alias])) for alias in made]
    return targets or [(name, "", None)]


def _others(source: Source, registry: Optional[Module]) -> List[Target]:
    """Backend classes that no name selects: all of them where the engine has no registry yet."""
    found: List[Target] = []
    for path in source.find(f"{_FOLDER}/**/*backend*.py"):
        module = source.module(path)
        if module is None:
            continue
        for name, node in classes(module).items():
            if _is_backend(node) and not _HELPERS.search(name) and not name.endswith("Base"):
                label = name if registry is not None else path.rsplit("/", 1)[-1].replace("_backend.py", "")
                found.append((label, name, (module, node)))
    return found


def _judge(source: Source, name: str, class_name: str, found: Optional[Owned]) -> Backend:
    if found is None:
        return Backend(name, class_name, UNKNOWN, "its class was not found in the engine's source")
    module, node = found
    chain = [found]
    while True:  # up the bases, until one prepares TARGET_VERIFY itself
        if _constructor_takes_backends(chain[-1][1]):
            reason = "hands every batch to the backends that it wraps"
            return Backend(name, class_name, WRAPPED, reason, evidence=[module.evidence(node.lineno)])
        use = mask_use(_scope(*chain[-1]))
        base = _base(source, *chain[-1])
        if (use.verify and (use.reads or use.links or _prepares(chain[-1][1]))) or base is None or base in chain:
            break
        chain.append(base)
    if len(chain) > 1 and not use.reads:
        use.links.clear()  # a base that gathers the links does not follow them
    return _verdict(name, class_name, chain, use)


def _prepares(node: ast.ClassDef) -> bool:
    return any(isinstance(item, ast.FunctionDef) and item.name == _PREPARE for item in node.body)


def _constructor_takes_backends(node: ast.ClassDef) -> bool:
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name == "__init__":
            annotations = [argument.annotation for argument in item.args.args if argument.annotation is not None]
            return any("AttentionBackend" in ast.dump(annotation) for annotation in annotations)
    return False


def _scope(module: Module, node: ast.ClassDef) -> List[ast.AST]:
    """The class, and its module's functions and helper classes, those for drafting left out."""
    rivals = {n for n, other in classes(module).items() if n != node.name and _is_backend(other)}
    helpers = [
        item
        for item in module.tree.body
        if isinstance(item, (ast.FunctionDef, ast.ClassDef)) and item is not node and item.name not in rivals
    ]
    return [node, *(item for item in helpers if not _HELPERS.search(item.name))]


def _is_backend(node: ast.ClassDef) -> bool:
    return any(last_name(base).endswith(("Backend", "BackendBase")) for base in node.bases)


def _base(source: Source, module: Module, node: ast.ClassDef) -> Optional[Owned]:
    known = imports(module)
    for base in node.bases:
        name = last_name(base)
        if name in classes(module):
            return module, classes(module)[name]
        found = source.resolve(*known[name]) if name in known and name != "AttentionBackend" else None
        if found is not None:
            return found
    return None


def _verdict(name: str, class_name: str, chain: List[Owned], use: MaskUse) -> Backend:
    module, node = chain[-1]
    inherited = f", inherited from {node.name}" if len(chain) > 1 else ""

    def evidence(lines: List[int]) -> List[Evidence]:
        return [module.evidence(line) for line in list(dict.fromkeys(lines))[:_MAX_EVIDENCE]]

    if not use.verify:
        reason = f"no path for TARGET_VERIFY{inherited}: draft tokens would be attended to as ordinary text"
        return Backend(name, class_name, NO, reason, evidence=evidence([node.lineno]))
    first = use.verify[:1]
    if use.reads:
        lines = [read.line for read in use.reads]
        eager = any(not read.graph for read in use.reads)
        graph = any(read.graph for read in use.reads)
        eager_reads = [read for read in use.reads if not read.graph] or use.reads
        if all(read.gated for read in eager_reads):
            reason = f"the mask is read only where the draft's top-k is above 1{inherited}"
            origin = _topk_origin(module)
            return Backend(name, class_name, TREE_ONLY, reason, eager, graph, evidence(first + lines + origin))
        reason = f"TARGET_VERIFY reads the tree mask{inherited}"
        return Backend(name, class_name, YES, reason, eager, graph, evidence(first + lines))
    if use.links:
        reason = f"follows the tree by its links, where the draft's top-k is above 1{inherited}"
        return Backend(name, class_name, TREE_ONLY, reason, True, None, evidence(first + use.links))
    remarks = [number for number, text in enumerate(module.lines, 1) if _ONLY_CHAIN.search(text)]
    reason = f"TARGET_VERIFY is handled, but no tree mask is read{inherited}"
    if use.dropped:
        reason = f"a tree mask is made and not used{inherited}"
    return Backend(name, class_name, NO, reason, evidence=evidence(first + use.dropped + remarks[:2]))


def _topk_origin(module: Module) -> List[int]:
    """Where the module takes top-k from: ``self.topk = …speculative_eagle_topk``."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Assign) and any(last_name(target) == "topk" for target in node.targets):
            names = {last_name(child) for child in ast.walk(node.value)}
            if "speculative_eagle_topk" in names:
                return [node.lineno]
    return []
