"""Compiled loops over the rows of a covariance with states. Imported when first needed: Numba takes a second to load.

Rows are in order of time, and C_ij = left_i^T A_i ... A_(j+1) right_j for j < i, with diagonal left_i^T right_i
+ noise_i. A is block diagonal: its blocks, of ``sizes``, follow one another in a row of ``A`` (n, sum sizes^2).
C = L D L^T with unit lower triangular L is found row by row, in O(m^2) each (Foreman-Mackey et al. 2017, m states):

    S_i = A_i T_(i-1) A_i^T                      c_i = A_i b_(i-1)
    g_i = right_i - S_i left_i                   z_i = y_i - left_i^T c_i
    e_i = left_i^T g_i + noise_i                 the entries of D
    T_i = S_i + g_i g_i^T / e_i                  b_i = c_i + g_i z_i / e_i

In the words of filtering, b is the mean of the state, g its covariance with the next measurement, e the variance and z
the error of that measurement's prediction. Infinite noise is a time without measurement. The functions fail, and say at
which row, where e is not positive.
"""

import numpy as np
from numba import njit


@njit(cache=True, nogil=True, inline="always")
def _congruence(A, sizes, T, B, S):  # type: ignore[no-untyped-def]
    """S = A T A^T for symmetric T, with B = A T as workspace."""
    m = len(T)
    o, p = 0, 0
    for b in sizes:
        if b == 1:
            for j in range(m):
                B[o, j] = A[p] * T[o, j]
        elif b == 2:
            for j in range(m):
                B[o, j] = A[p] * T[o, j] + A[p + 1] * T[o + 1, j]
                B[o + 1, j] = A[p + 2] * T[o, j] + A[p + 3] * T[o + 1, j]
        else:
            for r in range(b):
                for j in range(m):
                    B[o + r, j] = A[p + r * b] * T[o, j]
                for k in range(1, b):
                    for j in range(m):
                        B[o + r, j] += A[p + r * b + k] * T[o + k, j]
        o += b
        p += b * b
    o, p = 0, 0
    for b in sizes:
        if b == 1:
            for i in range(o + 1):
                S[i, o] = B[i, o] * A[p]
        elif b == 2:
            for i in range(o + 2):
                S[i, o] = B[i, o] * A[p] + B[i, o + 1] * A[p + 1]
                S[i, o + 1] = B[i, o] * A[p + 2] + B[i, o + 1] * A[p + 3]
        else:
            for r in range(b):
                for i in range(o + r + 1):
                    total = 0.0
                    for k in range(b):
                        total += B[i, o + k] * A[p + r * b + k]
                    S[i, o + r] = total
        o += b
        p += b * b
    for i in range(m):
        for j in range(i):
            S[i, j] = S[j, i]


@njit(cache=True, nogil=True, inline="always")
def _product(A, sizes, b, c):  # type: ignore[no-untyped-def]
    """c = A b for columns b."""
    q = b.shape[1]
    o, p = 0, 0
    for s in sizes:
        for r in range(s):
            for j in range(q):
                total = 0.0
                for k in range(s):
                    total += A[p + r * s + k] * b[o + k, j]
                c[o + r, j] = total
        o += s
        p += s * s


@njit(cache=True, nogil=True, inline="always")
def _transposed_product(A, sizes, b, c):  # type: ignore[no-untyped-def]
    """c = A^T b for columns b."""
    q = b.shape[1]
    o, p = 0, 0
    for s in sizes:
        for r in range(s):
            for j in range(q):
                total = 0.0
                for k in range(s):
                    total += A[p + k * s + r] * b[o + k, j]
                c[o + r, j] = total
        o += s
        p += s * s


@njit(cache=True, nogil=True)
def forward(sizes, A, left, right, noise, Y, T, b, least, e, Z, G, Ss, cs):  # type: ignore[no-untyped-def]
    """Factorise rows, from T (m, m) and b (m, q), which become those of the last row. Writes e (n,) and Z (n, q), and
    where they have rows G (n, m), Ss (n, m, m) and cs (n, m, q). Returns the log determinant and the row at which it
    failed, or -1. ``least`` is the smallest e allowed, relative to left_i^T right_i + noise_i; negative: rows with
    less than minus that are taken to be determined by those before."""
    n, m = left.shape
    q = Y.shape[1]
    keeps = len(Ss) > 0
    B, S, c, g = np.empty((m, m)), np.empty((m, m)), np.empty((m, q)), np.empty(m)
    log_det = 0.0
    for i in range(n):
        h = left[i]
        _congruence(A[i], sizes, T, B, S)
        _product(A[i], sizes, b, c)
        d, full = noise[i], noise[i]
        for j in range(m):
            total = right[i, j]
            for k in range(m):
                total -= S[j, k] * h[k]
            g[j] = total
            d += h[j] * total
            full += h[j] * right[i, j]
        if keeps:
            for j in range(m):
                G[i, j] = g[j]
                for k in range(m):
                    Ss[i, j, k] = S[j, k]
                for k in range(q):
                    cs[i, j, k] = c[j, k]
        for k in range(q):
            total = Y[i, k]
            for j in range(m):
                total -= h[j] * c[j, k]
            Z[i, k] = total
        e[i] = d
        if np.isinf(noise[i]) or (least < 0 and not d > max(-least * full, 0.0)):
            if not np.isinf(noise[i]):
                e[i] = 0.0
            for j in range(m):
                for k in range(m):
                    T[j, k] = S[j, k]
                for k in range(q):
                    b[j, k] = c[j, k]
            continue
        if not d > least * full:
            return log_det, i
        log_det += np.log(d)
        over = 1 / d
        for j in range(m):
            w = g[j] * over
            for k in range(m):
                T[j, k] = S[j, k] + w * g[k]
            for k in range(q):
                b[j, k] = c[j, k] + w * Z[i, k]
    return log_det, -1


@njit(cache=True, nogil=True)
def forward_two(A, left, right, noise, Y, T, b, least, e, Z):  # type: ignore[no-untyped-def]
    """`forward` for one block of two states, of which nothing is kept: T in registers, about 40 flops a row, and the
    logarithm of a product of many e."""
    n, q = Y.shape
    t00, t01, t11 = T[0, 0], T[0, 1], T[1, 1]
    log_det, product = 0.0, 1.0
    failed = -1
    for i in range(n):
        a00, a01, a10, a11 = A[i, 0], A[i, 1], A[i, 2], A[i, 3]
        h0, h1, r0, r1, d = left[i, 0], left[i, 1], right[i, 0], right[i, 1], noise[i]
        u0, u1 = a00 * t00 + a01 * t01, a00 * t01 + a01 * t11
        v0, v1 = a10 * t00 + a11 * t01, a10 * t01 + a11 * t11
        s00, s01, s11 = u0 * a00 + u1 * a01, u0 * a10 + u1 * a11, v0 * a10 + v1 * a11
        g0, g1 = r0 - (s00 * h0 + s01 * h1), r1 - (s01 * h0 + s11 * h1)
        full = d + (h0 * r0 + h1 * r1)
        d += h0 * g0 + h1 * g1
        e[i] = d
        t00, t01, t11, over = s00, s01, s11, 0.0
        if d < np.inf:
            if not d > least * full:
                failed = i
                break
            over = 1 / d
            t00, t01, t11 = s00 + g0 * over * g0, s01 + g0 * over * g1, s11 + g1 * over * g1
            if 1e-100 < d < 1e100:
                product *= d
                if not 1e-100 < product < 1e100:
                    log_det += np.log(product)
                    product = 1.0
            else:
                log_det += np.log(d)
        elif d != np.inf:
            failed = i
            break
        for k in range(q):
            c0, c1 = a00 * b[0, k] + a01 * b[1, k], a10 * b[0, k] + a11 * b[1, k]
            z = Y[i, k] - (h0 * c0 + h1 * c1)
            Z[i, k] = z
            b[0, k], b[1, k] = c0 + g0 * over * z, c1 + g1 * over * z
    T[0, 0], T[0, 1], T[1, 0], T[1, 1] = t00, t01, t01, t11
    return log_det + np.log(product), failed


@njit(cache=True, nogil=True)
def forward_two_twice(A, left, right, noise, Y, T, b, least, e, Z):  # type: ignore[no-untyped-def]
    """`forward_two` for two blocks of two states: T = (P, Q; Q^T, R) in registers, about 130 flops a row."""
    n, q = Y.shape
    p00, p01, p11 = T[0, 0], T[0, 1], T[1, 1]
    q00, q01, q10, q11 = T[0, 2], T[0, 3], T[1, 2], T[1, 3]
    r00, r01, r11 = T[2, 2], T[2, 3], T[3, 3]
    log_det, product = 0.0, 1.0
    failed = -1
    for i in range(n):
        a00, a01, a10, a11 = A[i, 0], A[i, 1], A[i, 2], A[i, 3]
        d00, d01, d10, d11 = A[i, 4], A[i, 5], A[i, 6], A[i, 7]
        h0, h1, h2, h3 = left[i, 0], left[i, 1], left[i, 2], left[i, 3]
        f0, f1, f2, f3, d = right[i, 0], right[i, 1], right[i, 2], right[i, 3], noise[i]
        # The first block times P, the second times R, and the first times Q
        u0, u1, v0, v1 = a00 * p00 + a01 * p01, a00 * p01 + a01 * p11, a10 * p00 + a11 * p01, a10 * p01 + a11 * p11
        p00, p01, p11 = u0 * a00 + u1 * a01, u0 * a10 + u1 * a11, v0 * a10 + v1 * a11
        u0, u1, v0, v1 = d00 * r00 + d01 * r01, d00 * r01 + d01 * r11, d10 * r00 + d11 * r01, d10 * r01 + d11 * r11
        r00, r01, r11 = u0 * d00 + u1 * d01, u0 * d10 + u1 * d11, v0 * d10 + v1 * d11
        u0, u1, v0, v1 = a00 * q00 + a01 * q10, a00 * q01 + a01 * q11, a10 * q00 + a11 * q10, a10 * q01 + a11 * q11
        q00, q01, q10, q11 = u0 * d00 + u1 * d01, u0 * d10 + u1 * d11, v0 * d00 + v1 * d01, v0 * d10 + v1 * d11
        g0 = f0 - (p00 * h0 + p01 * h1 + q00 * h2 + q01 * h3)
        g1 = f1 - (p01 * h0 + p11 * h1 + q10 * h2 + q11 * h3)
        g2 = f2 - (q00 * h0 + q10 * h1 + r00 * h2 + r01 * h3)
        g3 = f3 - (q01 * h0 + q11 * h1 + r01 * h2 + r11 * h3)
        full = d + (h0 * f0 + h1 * f1 + h2 * f2 + h3 * f3)
        d += h0 * g0 + h1 * g1 + h2 * g2 + h3 * g3
        e[i] = d
        over = 0.0
        if d < np.inf:
            if not d > least * full:
                failed = i
                break
            over = 1 / d
            w0, w1, w2, w3 = g0 * over, g1 * over, g2 * over, g3 * over
            p00, p01, p11 = p00 + w0 * g0, p01 + w0 * g1, p11 + w1 * g1
            q00, q01, q10, q11 = q00 + w0 * g2, q01 + w0 * g3, q10 + w1 * g2, q11 + w1 * g3
            r00, r01, r11 = r00 + w2 * g2, r01 + w2 * g3, r11 + w3 * g3
            if 1e-100 < d < 1e100:
                product *= d
                if not 1e-100 < product < 1e100:
                    log_det += np.log(product)
                    product = 1.0
            else:
                log_det += np.log(d)
        elif d != np.inf:
            failed = i
            break
        for k in range(q):
            c0, c1 = a00 * b[0, k] + a01 * b[1, k], a10 * b[0, k] + a11 * b[1, k]
            c2, c3 = d00 * b[2, k] + d01 * b[3, k], d10 * b[2, k] + d11 * b[3, k]
            z = Y[i, k] - (h0 * c0 + h1 * c1 + h2 * c2 + h3 * c3)
            Z[i, k] = z
            w = over * z
            b[0, k], b[1, k], b[2, k], b[3, k] = c0 + g0 * w, c1 + g1 * w, c2 + g2 * w, c3 + g3 * w
    T[0, 0], T[0, 1], T[1, 0], T[1, 1] = p00, p01, p01, p11
    T[0, 2], T[0, 3], T[1, 2], T[1, 3] = q00, q01, q10, q11
    T[2, 0], T[3, 0], T[2, 1], T[3, 1] = q00, q01, q10, q11
    T[2, 2], T[2, 3], T[3, 2], T[3, 3] = r00, r01, r01, r11
    return log_det + np.log(product), failed


@njit(cache=True, nogil=True)
def reverse(sizes, A, left, right, G, Ss, cs, e, Z, T0, b0, T_bar, b_bar, A_bar, left_bar, right_bar, noise_bar, Y_bar):  # type: ignore[no-untyped-def]
    """Derivatives of -1/2 sum_i (ln e_i + sum_k Z_ik^2 / e_i) in all that `forward` reads, from what it wrote. T_bar
    and b_bar hold those in T and b after the last row, and become those in T0 and b0, before the first."""
    n, m = left.shape
    q = Z.shape[1]
    T, X, S_bar, c_bar = np.empty((m, m)), np.empty((m, m)), np.empty((m, m)), np.empty((m, q))
    b, g_bar, v = np.empty((m, q)), np.empty(m), np.empty(m)
    for i in range(n - 1, -1, -1):
        h, g, S, c, over = left[i], G[i], Ss[i], cs[i], 1 / e[i]
        # T = S + g g^T / e and b = c + g z / e
        quadratic = 0.0
        for j in range(m):
            total = 0.0
            for k in range(m):
                total += T_bar[j, k] * g[k]
            v[j] = total
            quadratic += g[j] * total
        e_bar = -0.5 * over - quadratic * over * over
        for j in range(m):
            g_bar[j] = 2 * v[j] * over
        for k in range(q):
            z, total = Z[i, k], 0.0
            for j in range(m):
                total += b_bar[j, k] * g[j]
                g_bar[j] += b_bar[j, k] * z * over
            e_bar += (0.5 * z - total) * z * over * over
            z_bar = (total - z) * over
            Y_bar[i, k] = z_bar
            for j in range(m):
                c_bar[j, k] = b_bar[j, k] - h[j] * z_bar
        noise_bar[i] = e_bar
        # e = h^T g + noise, z = y - h^T c and g = right - S h
        for j in range(m):
            g_bar[j] += e_bar * h[j]
            right_bar[i, j] = g_bar[j]
        for j in range(m):
            total = e_bar * g[j]
            for k in range(q):
                total -= Y_bar[i, k] * c[j, k]
            for k in range(m):
                total -= S[j, k] * g_bar[k]
                S_bar[j, k] = T_bar[j, k] - 0.5 * (g_bar[j] * h[k] + h[j] * g_bar[k])
            left_bar[i, j] = total
        # S = A T A^T and c = A b, of the row before
        if i > 0:
            before = 1 / e[i - 1]
            for j in range(m):
                w = G[i - 1, j] * before
                for k in range(m):
                    T[j, k] = Ss[i - 1, j, k] + w * G[i - 1, k]
                for k in range(q):
                    b[j, k] = cs[i - 1, j, k] + w * Z[i - 1, k]
        else:
            T[:] = T0
            b[:] = b0
        o, p = 0, 0
        for s in sizes:  # X = A T
            for r in range(s):
                for j in range(m):
                    total = 0.0
                    for k in range(s):
                        total += A[i, p + r * s + k] * T[o + k, j]
                    X[o + r, j] = total
            o += s
            p += s * s
        o, p = 0, 0
        for s in sizes:
            for r in range(s):
                for k in range(s):
                    total = 0.0
                    for j in range(m):
                        total += S_bar[o + r, j] * X[j, o + k]
                    total *= 2
                    for j in range(q):
                        total += c_bar[o + r, j] * b[o + k, j]
                    A_bar[i, p + r * s + k] = total
            o += s
            p += s * s
        o, p = 0, 0
        for s in sizes:  # T_bar = A^T S_bar A
            for r in range(s):
                for j in range(m):
                    total = 0.0
                    for k in range(s):
                        total += A[i, p + k * s + r] * S_bar[o + k, j]
                    X[o + r, j] = total
            o += s
            p += s * s
        o, p = 0, 0
        for s in sizes:
            for r in range(s):
                for j in range(o + r + 1):
                    total = 0.0
                    for k in range(s):
                        total += X[j, o + k] * A[i, p + k * s + r]
                    T_bar[j, o + r] = total
                    T_bar[o + r, j] = total
            o += s
            p += s * s
        _transposed_product(A[i], sizes, c_bar, b_bar)


@njit(cache=True, nogil=True)
def backward(sizes, A, left, G, e, Z, N, f, keeps, a, diagonal, Ns, fs):  # type: ignore[no-untyped-def]
    """a = C^-1 y (n, q) and the diagonal of C^-1 (n,), from what `forward` wrote.

    f_i = sum_(j>i) A_(i+1)^T ... A_j^T left_j a_j (m, q), and N_i (m, m) is its covariance for y ~ N(0, C). Both come
    after the last row, and become those of before the first: to be multiplied by its A^T. Where ``keeps``, they are
    written, as of after each row, to Ns (n, m, m) and fs (n, m, q).
    """
    n, m = left.shape
    q = f.shape[1]
    W, M, v, u = np.empty((m, m)), np.empty((m, m)), np.empty(m), np.empty((m, q))
    At = np.empty(A.shape[1])
    for i in range(n - 1, -1, -1):
        h = left[i]
        if keeps:
            Ns[i] = N
            fs[i] = f
        over = 0.0 if np.isinf(e[i]) or e[i] <= 0 else 1 / e[i]
        d = over
        if over > 0:
            for j in range(m):
                total = 0.0
                for k in range(m):
                    total += N[j, k] * G[i, k]
                v[j] = total * over
            for j in range(m):
                d += v[j] * G[i, j] * over
            for k in range(q):
                total = Z[i, k]
                for j in range(m):
                    total -= G[i, j] * f[j, k]
                a[i, k] = total * over
                for j in range(m):
                    f[j, k] += h[j] * a[i, k]
            for j in range(m):
                for k in range(m):
                    N[j, k] += d * h[j] * h[k] - h[j] * v[k] - v[j] * h[k]
        else:
            for k in range(q):
                a[i, k] = 0.0
        diagonal[i] = d
        if i > 0:  # A of the first row leads out of these rows
            p = 0
            for s in sizes:
                for r in range(s):
                    for k in range(s):
                        At[p + r * s + k] = A[i, p + k * s + r]
                p += s * s
            _congruence(At, sizes, N, W, M)
            N[:] = M
            _transposed_product(A[i], sizes, f, u)
            f[:] = u


@njit(cache=True, nogil=True)
def transitions(sizes, A, left, G, e, chosen, Psi, running):  # type: ignore[no-untyped-def]
    """Products A_j (I - w_(j-1) left_(j-1)^T) A_(j-1) ... from each chosen row to the next, w = g / e, into Psi
    (number chosen, m, m); the first starts with ``running`` (m, m), which becomes the product after the last one."""
    n, m = left.shape
    X, v = np.empty((m, m)), np.empty(m)
    count = 0
    for i in range(n):
        _product(A[i], sizes, running, X)
        if chosen[i]:
            Psi[count] = X
            count += 1
            X[:] = 0.0
            for j in range(m):
                X[j, j] = 1.0
        if not np.isinf(e[i]) and e[i] > 0:
            for k in range(m):
                total = 0.0
                for j in range(m):
                    total += left[i, j] * X[j, k]
                v[k] = total / e[i]
            for j in range(m):
                for k in range(m):
                    X[j, k] -= G[i, j] * v[k]
        running[:] = X


@njit(cache=True, nogil=True)
def simulate(sizes, A, left, G, e, normals, x, out):  # type: ignore[no-untyped-def]
    """L D^1/2 times normals (n, q), from what `forward` wrote; x (m, q) is the state after the row before."""
    n, m = left.shape
    q = x.shape[1]
    c = np.empty((m, q))
    for i in range(n):
        _product(A[i], sizes, x, c)
        root = np.sqrt(e[i]) if e[i] > 0 else 0.0
        over = 1 / e[i] if e[i] > 0 else 0.0
        for k in range(q):
            step, total = root * normals[i, k], 0.0
            for j in range(m):
                total += left[i, j] * c[j, k]
                x[j, k] = c[j, k] + G[i, j] * over * step
            out[i, k] = total + step


@njit(cache=True, nogil=True)
def multiply(sizes, A, left, right, V, x, out):  # type: ignore[no-untyped-def]
    """Strictly lower triangle of the covariance times V (n, q), added to out; x (m, q) comes from the rows before."""
    n, m = left.shape
    q = V.shape[1]
    c = np.empty((m, q))
    for i in range(n):
        _product(A[i], sizes, x, c)
        for k in range(q):
            total = 0.0
            for j in range(m):
                total += left[i, j] * c[j, k]
                x[j, k] = c[j, k] + right[i, j] * V[i, k]
            out[i, k] += total


@njit(cache=True, nogil=True)
def multiply_transposed(sizes, A, left, right, V, x, out):  # type: ignore[no-untyped-def]
    """The strictly upper triangle, likewise, from the last row to the first; A of the first row is not applied."""
    n, m = left.shape
    q = V.shape[1]
    c = np.empty((m, q))
    for i in range(n - 1, -1, -1):
        for k in range(q):
            total = 0.0
            for j in range(m):
                total += right[i, j] * x[j, k]
                x[j, k] += left[i, j] * V[i, k]
            out[i, k] += total
        if i > 0:
            _transposed_product(A[i], sizes, x, c)
            x[:] = c
