"""P(some child equals the target's token) when target and draft rank tokens with the same Gumbel noise and the draft's
children are its k best (see heads/tree_growth.h). Writes tree_acceptance.json: midpoint quadrature over the winner's race time,
with a dynamic programme over how many other tokens the draft ranks before it. Run: python3 tree_acceptance.py"""
import json, math, random

def acceptance(p, q, k, points=20000):
    total = 0.0
    for j, pj in enumerate(p):
        if pj == 0: continue
        below = 0.0
        for m in range(points):
            s = -pj * math.log((m + 0.5) / points)      # race time of the target's token, times p_j
            count = [1.0] + [0.0] * k                   # [t]: P(t tokens rank before j), cut at k
            for i in range(len(p)):
                if i == j: continue
                b = 1 - math.exp(-s * max(0.0, q[i] / q[j] - p[i] / pj))
                for t in range(k, -1, -1): count[t] = count[t] * (1 - b) + (count[t - 1] * b if t else 0)
            below += sum(count[:k])
        total += pj * below / points
    return total

def random_pair(r, size, spread):
    logits = [r.gauss(0, 1.5) for _ in range(size)]
    def soft(x): e = [math.exp(v) for v in x]; return [v / sum(e) for v in e]
    return soft(logits), soft([v + r.gauss(0, spread) for v in logits])

r = random.Random(7)
pairs = [([.5, .3, .15, .05], [.4, .2, .3, .1]), ([.7, .1, .1, .1], [.1, .1, .1, .7]), ([.25] * 4, [.97, .01, .01, .01])]
pairs += [random_pair(r, n, s) for n in (6, 12) for s in (0.3, 1.0, 2.0)]
cases = [dict(p=p, q=q, acceptance={str(k): round(acceptance(p, q, k), 6) for k in (1, 2, 3, 4)}) for p, q in pairs]
json.dump(dict(source="tree_acceptance.py; quadrature error below 1e-5", cases=cases), open('tree_acceptance.json', 'w'), indent=1)
