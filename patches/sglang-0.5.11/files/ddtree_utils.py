"""Draft trees for DDTree speculative decoding (arXiv 2604.12989), in pure torch.

One DFlash pass gives the marginals q_1..q_L of the next L positions. Under them a
prefix u has probability q(u) = prod_i q_i(u_i), and the tree of B nodes with the
largest expected number of accepted drafts is the B most probable prefixes.

Everything here is batched, has fixed shapes, and neither loops over requests or nodes
nor reads a value back to the host, so the same code can be captured in a CUDA graph.

Shapes: bs = requests, L = draft depths (block_size - 1), K = tokens per depth,
B = budget, D = B + 1 nodes with the root, P = min(L, B) + 1 = longest committed path.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple, Tuple

import torch

# Largest accepted `--speculative-ddtree-budget`. The tree mask is D x D per request and
# the target verifies D tokens per request and step: no model gains beyond this.
MAX_DDTREE_BUDGET = 511


class DDTree(NamedTuple):
    """A batch of draft trees. Node 0 is the root (the current token).

    Nodes are sorted by falling q(u), so every parent precedes its children and the
    first b + 1 nodes are the best tree of budget b.
    """

    tokens: torch.Tensor  # [bs, D] int64
    parents: torch.Tensor  # [bs, D] int64, node index; the root is its own parent
    depths: torch.Tensor  # [bs, D] int64, 0 for the root
    scores: torch.Tensor  # [bs, D] float32, log q(u); -inf marks a padding node
    mask: torch.Tensor  # [bs, D, D] bool, mask[b, i, j]: j is i or an ancestor of i


def ddtree_path_len(num_depths: int, budget: int) -> int:
    """Longest path a tree can commit, the root included (P)."""
    return min(num_depths, budget) + 1


@lru_cache(maxsize=64)
def _candidate_pairs(
    budget: int, num_tokens: int, device: torch.device
) -> Tuple[torch.Tensor, torch.Tensor]:
    """Return (parent slot, token rank) of the children that can be among the B best.

    With parents and tokens sorted by falling probability, the child (p, r) has at least
    (p + 1) * (r + 1) - 1 children that are no worse, so only pairs with
    (p + 1) * (r + 1) <= B matter: O(B log B) of them instead of B * K.
    """
    pairs = [
        (p, r) for p in range(budget) for r in range(min(num_tokens, budget // (p + 1)))
    ]
    index = torch.tensor(pairs, dtype=torch.int64).to(device)
    return index[:, 0].contiguous(), index[:, 1].contiguous()


def _top(scores: torch.Tensor, num: int) -> Tuple[torch.Tensor, torch.Tensor]:
    """The `num` best of `scores` [bs, N] in falling order; ties keep their order.

    The order of ties matters: it keeps parents before their children.
    Returns (values [bs, num], indices [bs, num]), padded with -inf and 0.
    """
    values, indices = torch.sort(scores, dim=1, descending=True, stable=True)
    if scores.shape[1] < num:
        pad = num - scores.shape[1]
        values = torch.nn.functional.pad(values, (0, pad), value=float("-inf"))
        indices = torch.nn.functional.pad(indices, (0, pad), value=0)
    return values[:, :num], indices[:, :num]


def ddtree_top_scores(
    logits: torch.Tensor, num_tokens: int
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The most probable tokens of each row.

    Args:
        logits: [N, V], any float dtype. The draft stays untempered.
        num_tokens: K; clipped to V.
    Returns:
        (logits [N, K] float32 in falling order, token_ids [N, K] int64,
        lse [N, 1] float32, the log of the row's sum of exp(logits))
    """
    scores, token_ids = torch.topk(logits, min(num_tokens, logits.shape[-1]), dim=-1)
    lse = torch.logsumexp(logits.float(), dim=-1, keepdim=True)
    return scores.float(), token_ids, lse


def ddtree_top_tokens(
    logits: torch.Tensor, num_tokens: int
) -> Tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities and ids of the most probable tokens; see `ddtree_top_scores`.

    Returns:
        (log_probs [N, K] float32 in falling order, token_ids [N, K] int64)
    """
    scores, token_ids, lse = ddtree_top_scores(logits, num_tokens)
    return scores - lse, token_ids


def build_ddtree(
    *,
    log_probs: torch.Tensor,
    token_ids: torch.Tensor,
    root_tokens: torch.Tensor,
    budget: int,
) -> DDTree:
    """Build the trees of the `budget` most probable prefixes.

    At each depth the best B of (kept prefixes x tokens) are kept, then the best B over
    all depths: the same set that best-first search with a heap finds, because a prefix
    is never more probable than its own prefixes.

    Args:
        log_probs: [bs, L, K] float32, falling along K. K >= min(B, V) for the exact tree.
        token_ids: [bs, L, K] int64.
        root_tokens: [bs] int64, the current token of each request.
        budget: B >= 0, nodes without the root. Trees with fewer possible nodes are
            padded with nodes of score -inf that hang below the root and are never accepted.
    """
    bs, num_depths, num_tokens = log_probs.shape
    device = log_probs.device
    root_tokens = root_tokens.view(bs, 1)
    if budget == 0 or num_depths == 0:
        zeros = torch.zeros((bs, budget + 1), dtype=torch.int64, device=device)
        scores = torch.full((bs, budget + 1), float("-inf"), device=device)
        scores[:, :1] = 0.0
        return _finish_tree(root_tokens + zeros, zeros, (zeros + 1), scores, 1)

    pair_parent, pair_rank = _candidate_pairs(budget, num_tokens, device)

    # Kept prefixes of each depth: [bs, B], padded with -inf.
    kept, rank = _top(log_probs[:, 0, :], budget)
    kept_scores = [kept]
    kept_tokens = [token_ids[:, 0, :].gather(1, rank)]
    kept_parents = [torch.zeros_like(rank)]
    for depth in range(1, num_depths):
        scores = kept[:, pair_parent] + log_probs[:, depth, :][:, pair_rank]
        kept, index = _top(scores, budget)
        kept_scores.append(kept)
        kept_tokens.append(token_ids[:, depth, :].gather(1, pair_rank[index]))
        kept_parents.append(pair_parent[index])

    # Depth-major order and a stable sort put parents first even where q is exactly 1.
    scores, index = _top(torch.cat(kept_scores, dim=1), budget)
    depths = index // budget + 1
    tokens = torch.cat(kept_tokens, dim=1).gather(1, index)
    parent_slots = torch.cat(kept_parents, dim=1).gather(1, index)

    # Node number of each kept prefix, to name the parents by it.
    node_ids = torch.arange(1, budget + 1, device=device).expand(bs, -1)
    node_of_slot = torch.zeros(
        (bs, num_depths * budget), dtype=torch.int64, device=device
    ).scatter_(1, index, node_ids)
    parents = node_of_slot.gather(
        1, ((depths - 2) * budget + parent_slots).clamp(min=0)
    )
    parents = torch.where(depths > 1, parents, 0)

    return _finish_tree(
        torch.cat([root_tokens, tokens], dim=1),
        torch.nn.functional.pad(parents, (1, 0), value=0),
        torch.nn.functional.pad(depths, (1, 0), value=0),
        torch.nn.functional.pad(scores, (1, 0), value=0.0),
        num_depths,
    )


def _finish_tree(
    tokens: torch.Tensor,
    parents: torch.Tensor,
    depths: torch.Tensor,
    scores: torch.Tensor,
    num_depths: int,
) -> DDTree:
    is_node = scores > float("-inf")
    is_node[:, 0] = True
    parents = torch.where(is_node, parents, 0)
    depths = torch.where(is_node, depths, 1)
    depths[:, 0] = 0
    tokens = torch.where(is_node, tokens, tokens[:, :1])
    return DDTree(
        tokens, parents, depths, scores, build_ancestor_mask(parents, num_depths)
    )


def build_ancestor_mask(parents: torch.Tensor, num_depths: int) -> torch.Tensor:
    """Ancestor-or-self mask of each node.

    Args:
        parents: [bs, D] int64 node indices; the root is its own parent.
        num_depths: upper bound of the node depths.
    Returns:
        [bs, D, D] bool, True at [b, i, j] if j is i or an ancestor of i.
    """
    num_nodes = parents.shape[1]
    mask = torch.eye(num_nodes, dtype=torch.bool, device=parents.device)
    mask = mask.expand(parents.shape[0], -1, -1).clone()
    ancestors = parents
    for _ in range(min(num_depths, num_nodes - 1)):
        mask.scatter_(2, ancestors.unsqueeze(2), True)
        ancestors = parents.gather(1, ancestors)
    return mask


def build_verify_mask(
    tree_mask: torch.Tensor, prefix_lens: torch.Tensor
) -> torch.Tensor:
    """Flatten tree masks to the `custom_mask` layout of SGLang's TARGET_VERIFY.

    Row i of request b allows its whole prefix, then the ancestors of node i and itself.

    Args:
        tree_mask: [bs, D, D] bool.
        prefix_lens: [bs] on the CPU, tokens in the KV cache before the root.
    Returns:
        [sum_b D * (prefix_lens[b] + D)] bool on the device of `tree_mask`.
    """
    chunks = [
        torch.nn.functional.pad(mask, (int(prefix_len), 0), value=True).flatten()
        for mask, prefix_len in zip(tree_mask, prefix_lens.tolist(), strict=True)
    ]
    return torch.cat(chunks)


def walk_ddtree(
    tree: DDTree, target_tokens: torch.Tensor, path_len: int
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Follow the target's own choice at each node, from the root, while a child carries it.

    The choices may be argmaxes or samples; either way the committed tokens are what the
    target alone would have produced, so there is no rejection step and no correction.

    Args:
        tree: the verified trees.
        target_tokens: [bs, D] int64, the target's choice after each node.
        path_len: P, see `ddtree_path_len`.
    Returns:
        path: [bs, P] int64 node indices from the root; entries past the commit hold their
            own column, so that moving KV along the path leaves them where they are.
        commit_lens: [bs] int64, nodes on the path = tokens to append (1..P).
        tokens: [bs, P] int64, the first commit_lens[b] are appended to request b; the
            last of them is the bonus token, the root of the next tree.
    """
    bs, num_nodes = tree.tokens.shape
    device = tree.tokens.device
    # A node is reached if it and all its ancestors carry the choice made at their parent.
    matches = tree.tokens == target_tokens.gather(1, tree.parents)
    matches &= tree.scores > float("-inf")
    matches[:, 0] = True
    reached = (tree.mask & ~matches.unsqueeze(1)).sum(dim=2) == 0
    commit_lens = reached.sum(dim=1)

    columns = torch.arange(path_len, device=device).expand(bs, -1)
    # Siblings carry different tokens, so there is at most one reached node per depth;
    # all others are written to a spare column.
    path = torch.nn.functional.pad(columns, (0, 1))
    node_ids = torch.arange(num_nodes, device=device).expand(bs, -1)
    path = path.scatter(1, torch.where(reached, tree.depths, path_len), node_ids)
    path = path[:, :path_len]
    return path, commit_lens, target_tokens.gather(1, path)


def ddtree_commit_slots(
    path: torch.Tensor, commit_lens: torch.Tensor, slots: torch.Tensor
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """KV slots to move so that the committed path is contiguous again.

    Args:
        path: [bs, P] node indices of `walk_ddtree`.
        commit_lens: [bs].
        slots: [bs, D] KV slot of each node, in sequence order.
    Returns:
        (source [bs, P], target [bs, P], draft_target [bs, P]): move source to target;
        draft_target equals target for committed nodes and the padding slot 0 otherwise.
    """
    path_len = path.shape[1]
    target = slots[:, :path_len]
    source = slots.gather(1, path)
    columns = torch.arange(path_len, device=path.device)
    draft_target = torch.where(columns < commit_lens.unsqueeze(1), target, 0)
    return source, target, draft_target


def gather_path(nodes: torch.Tensor, path: torch.Tensor) -> torch.Tensor:
    """Rows of [bs, D, F] along the path [bs, P]: [bs, P, F].

    The path's nodes are scattered; the first P rows would leave the text right and
    only spoil the next draft.
    """
    return nodes.gather(1, path.unsqueeze(2).expand(-1, -1, nodes.shape[2]))


def ddtree_expected_lens(scores: torch.Tensor, sizes: Tuple[int, ...]) -> torch.Tensor:
    """Expected committed tokens of the best tree of each size, by the draft's own q.

    A tree of b nodes commits 1 + sum of q(u) over its nodes in expectation; nodes are
    sorted by falling q(u), so each size is a prefix sum.

    Args:
        scores: [bs, D] float32, log q(u).
        sizes: budgets b < D.
    Returns:
        [bs, len(sizes)] float32.
    """
    sums = scores.exp().cumsum(dim=1)
    return torch.stack([sums[:, b] for b in sizes], dim=1)
