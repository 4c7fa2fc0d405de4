"""The formulas of the gallery in LaTeX, by example: in the order of the indented ones of its docstring, or the main ones."""

FORMULAS: dict[str, list[str]] = {
    "first_physics": [
        r"-\Delta = T \otimes I + I \otimes T, \qquad (I - \tau \Delta)\, u_1 = u_0, \qquad u(t) = e^{t \Delta} u_0"
    ],
    "first_statistics": [
        r"(X^\top X + \lambda I)\, \beta = X^\top y, \qquad "
        r"\mathrm{df} = \operatorname{tr} X (X^\top X + \lambda I)^{-1} X^\top"
    ],
    "first_torch": [
        r"\log p(y) = -\tfrac12\, y^\top K^{-1} y - \tfrac12 \log\det K - \tfrac n2 \log 2\pi, \qquad K = K_\ell + s^2 I"
    ],
    "first_jax": [r"-(k\, u')' = 1, \qquad u(0) = u(1) = 0, \qquad \log k \text{ smooth}"],
    "first_signals": [r"\min_x\; \|R B x - y\|^2 + \lambda^2 \|D x\|^2"],
    "demo": [r"f = K\, (K + s^2 I)^{-1} y, \qquad K = K_y \otimes K_x"],
    "bi_poisson": [r"L L\, u = \rho, \qquad L = T \otimes I + I \otimes T"],
    "equivariant_layers": [
        r"C \operatorname{vec}(W) = 0, \qquad C = \begin{bmatrix} P_{\mathrm{swap}}^{\otimes (k + l)} - I \\ "
        r"P_{\mathrm{cycle}}^{\otimes (k + l)} - I \end{bmatrix}"
    ],
    "gaussian_process": [r"K = v \exp\Bigl(-\sum_i \frac{(x_i - x_i')^2}{2\, l_i^2}\Bigr) + s I"],
    "hessian_spectrum": [
        r"\varphi(t) = \frac1n \operatorname{tr} g(H - t I), \qquad "
        r"g(\lambda) = \frac{1}{\sigma \sqrt{2\pi}}\, e^{-\lambda^2 / 2\sigma^2}"
    ],
    "hydrogen_atom": [
        r"H \psi = E \psi, \qquad H = -\tfrac12 \Delta - \tfrac1r \;\approx\; (T \oplus T \oplus T) + \operatorname{diag}(V)"
    ],
    "minimal_surface": [
        r"f(z) = (1 + z_x^2)\, z_{yy} - 2\, z_x z_y z_{xy} + (1 + z_y^2)\, z_{xx} = 0"
    ],
    "multitask_process": [r"K = K_{\mathrm{task}} \otimes K_x + s I"],
    "neural_pde": [
        r"\theta' = \operatorname*{arg\,min}_{\theta'} |J \theta' - f|^2 + \lambda |\theta'|^2, \qquad "
        r"(M + \lambda I)\, \theta' = J^\top f, \qquad M = J^\top J = \sum_i M_i"
    ],
    "principal_components": [
        r"\tfrac{1}{n} X^\top X\, v_k = \lambda_k v_k, \qquad \lambda_1 \ge \lambda_2 \ge \dots"
    ],
    "random_features": [r"K = \Phi \Phi^\top + s I = \sum_j \varphi_j \varphi_j^\top + s I"],
    "ridge_regression": [r"(X^\top X + \lambda I)\, w = X^\top y"],
    "second_order": [
        r"(G + \lambda I)\, s = -g, \qquad G = J^\top H J, \qquad K = \operatorname{diag}(B_1 \otimes A_1, B_2 \otimes A_2, \dots)"
    ],
    "spectral_clustering": [r"L = I - D^{-1/2}\, W D^{-1/2}"],
    "total_variation": [
        r"\min_x\; \tfrac12 \|A x - y\|^2 + \lambda \sum_i |(G x)_i|",
        r"x \leftarrow (I + \rho\, G^\top G)^{-1} (y + \rho\, G^\top (z - u)), \qquad "
        r"z \leftarrow \operatorname{shrink}(G x + u, \lambda / \rho), \qquad u \leftarrow u + G x - z",
    ],
}
