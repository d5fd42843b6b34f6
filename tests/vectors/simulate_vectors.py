"""Values for lab/simulate by other means than its own. Writes simulate.json:
  trees   best expected tokens of a tree of n nodes and some depth, by trying every shape (small n), and by taking the
          n likeliest paths (any n): with the same chances at every node both are the optimum
  kary    tokens of trees with k children everywhere, summed path by path
  rounds  speed-up of chains and of those trees under a cost curve, numpy.interp for the curve
  fits    pass times with noise, and what numpy.linalg.lstsq makes of them
Run: python3 simulate_vectors.py (numpy)."""
import heapq, itertools, json, random
import numpy as np


def likeliest(ranks, n, depth):
    """Sum of the n largest path probabilities of at most `depth` levels, 1 for the root's token."""
    heap, total, shape = [(-r, (i,)) for i, r in enumerate(ranks)], 1.0, []
    heapq.heapify(heap)
    while heap and len(shape) < n:
        p, path = heapq.heappop(heap)
        total -= p
        shape.append(path)
        if len(path) < depth:
            for i, r in enumerate(ranks):
                heapq.heappush(heap, (p * r, path + (i,)))
    return total, shape


def every_shape(ranks, n, depth):
    """The best over all trees whose children are a prefix of the ranks, by recursion over all splits."""
    def forests(n, depth, rank):
        if n == 0 or depth == 0 or rank == len(ranks):
            yield 0.0
            return
        for first in range(1, n + 1):  # nodes of the tree of this rank
            for below in forests(first - 1, depth - 1, 0):
                for rest in forests(n - first, depth, rank + 1):
                    yield ranks[rank] * (1 + below) + rest
        yield 0.0
    return 1 + max(forests(n, depth, 0))


def round_seconds(shape, curve, rho, delay):
    rows, costs = zip(*curve)
    cost = lambda m: float(np.interp(m, rows, costs))
    parents = {path[:-1] for path in shape}
    depth = max(len(path) for path in shape)
    level = [sum(1 for p in parents if len(p) == d) for d in range(depth)]
    return cost(len(shape) + 1) + 2 * delay + sum(rho * cost(m) for m in level)


def rounds(ranks, curve, rho, delay, n):
    chain = [(0,) * (i + 1) for i in range(n)]
    chain_tokens = 1 + sum(ranks[0] ** (i + 1) for i in range(n))
    best_chain = max((1 + sum(ranks[0] ** (i + 1) for i in range(m))) / round_seconds(chain[:m], curve, rho, delay)
                     for m in range(1, n + 1))
    best = (0, None)
    for depth in range(1, n + 1):
        tokens, shape = likeliest(ranks, n, depth)
        speed = tokens / round_seconds(shape, curve, rho, delay)
        best = max(best, (speed, tokens))
    return dict(ranks=ranks, row_costs=[f"{int(r)}={c}" for r, c in curve[1:]], draft_cost=rho, delay=delay, nodes=n,
                chain_tokens=chain_tokens, chain_speedup=chain_tokens / round_seconds(chain, curve, rho, delay),
                best_chain_speedup=best_chain, tree_tokens=best[1], tree_speedup=best[0])


def fit(seed, base, per_row, per_context, noise, contexts):
    r = random.Random(seed)
    samples = [dict(rows=m, context=c, seconds=(base + per_row * m + per_context * c) * (1 + r.gauss(0, noise)))
               for m in (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16) for c in contexts]
    columns = [[1.0, s["rows"], s["context"]][: 3 if len(contexts) > 1 else 2] for s in samples]
    solution = np.linalg.lstsq(np.array(columns), np.array([s["seconds"] for s in samples]), rcond=None)[0].tolist()
    return dict(samples=samples, base=solution[0], per_row=solution[1], per_context=(solution + [0.0])[2])


GPU = [(1, 1.0), (16, 1.10), (64, 1.3)]
SETS = [[0.68, 0.18, 0.06, 0.03], [0.85, 0.10, 0.03], [0.4, 0.3, 0.2, 0.1]]
trees = []
for ranks in SETS:
    for n, depth in itertools.product((1, 2, 4, 6, 8), (1, 2, 3, 8)):
        tokens = every_shape(ranks, n, depth)
        assert abs(tokens - likeliest(ranks, n, depth)[0]) < 1e-12
        trees.append(dict(ranks=ranks, nodes=n, depth=depth, tokens=tokens))
    for n, depth in ((16, 4), (16, 16), (32, 6), (32, 32)):
        trees.append(dict(ranks=ranks, nodes=n, depth=depth, tokens=likeliest(ranks, n, depth)[0]))
kary = [dict(ranks=ranks, children=k, depth=d,
             tokens=1 + sum(np.prod(path) for e in range(1, d + 1) for path in itertools.product(ranks[:k], repeat=e)))
        for ranks in SETS for k in (1, 2, 3) for d in (1, 2, 4)]
json.dump(dict(source="simulate_vectors.py", trees=trees, kary=kary,
               rounds=[rounds(ranks, GPU, rho, delay, n) for ranks in SETS for rho, delay in ((0.05, 0), (0.01, 0.1))
                       for n in (4, 8, 16, 32)],
               fits=[fit(1, 5e-3, 2e-5, 4e-8, 0.01, (128, 2048)), fit(2, 8e-4, 3e-5, 0, 0.02, (20,)),
                     fit(3, 0.02, 4e-4, 1e-6, 0, (0, 512, 4096))]),
          open("simulate.json", "w"), indent=1)
