"""Slow and obvious versions of what `ddtree_utils` does in batches."""

import heapq


def heap_tree(log_probs, token_ids, budget):
    """Best-first search over prefixes of ranks: [(ranks, score)] in falling order.

    Sums in float32 and breaks ties like the builder: shorter prefixes first, then lower ranks.
    """
    num_depths, num_tokens = log_probs.shape
    found, heap = [], []

    def push(ranks):
        score = log_probs[0, ranks[0]]
        for depth, rank in enumerate(ranks[1:], 1):
            score = score + log_probs[depth, rank]
        if score > float("-inf"):
            heapq.heappush(heap, (-float(score), len(ranks), ranks))

    if budget and num_depths:
        push((0,))
    while heap and len(found) < budget:
        score, _, ranks = heapq.heappop(heap)
        found.append((ranks, -score))
        if ranks[-1] + 1 < num_tokens:
            push((*ranks[:-1], ranks[-1] + 1))
        if len(ranks) < num_depths:
            push((*ranks, 0))
    return found


def prefix_of(tokens, parents, node):
    """Tokens on the way from the root to `node`, the root's left out."""
    prefix = []
    while node:
        prefix.append(int(tokens[node]))
        node = int(parents[node])
    return tuple(reversed(prefix))


def ancestors_or_self(parents, node):
    found = {node}
    while node:
        node = int(parents[node])
        found.add(node)
    return found


def walk(tokens, parents, valid, target_tokens):
    """Nodes of the committed path from the root, following the target's choices."""
    path = [0]
    while True:
        node = path[-1]
        children = [
            c
            for c in range(1, len(tokens))
            if valid[c] and int(parents[c]) == node and int(tokens[c]) == int(target_tokens[node])
        ]
        if not children:
            return path
        assert len(children) == 1, "siblings carry different tokens"
        path.append(children[0])
