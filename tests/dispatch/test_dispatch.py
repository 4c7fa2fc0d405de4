"""Patterns, signatures, resolution and calls, on toy operators; the patterns against a matcher by brute force."""

from __future__ import annotations

import gc
import inspect
import itertools
import pickle
import random
import threading

import pytest
from support.toys import (
    PSD,
    Dense,
    Diagonal,
    Kronecker,
    LowRank,
    Product,
    SelfAdjoint,
    Sum,
    Toy,
    Unitary,
)

from colinear import dispatch
from colinear.dispatch import (
    calls,
    check_rules,
    function,
    functions,
    patterns,
    rule,
    signatures,
)
from colinear.dispatch.patterns import Pattern, arrange, as_pattern
from colinear.dispatch.resolution import Cost
from colinear.dispatch.signatures import signature
from colinear.dispatch.subsumption import meet, overlaps, subsumes
from colinear.errors import AmbiguityError, MethodError


@pytest.fixture(autouse=True)
def forget_functions():
    """The functions that a test makes, ambiguous ones too, must not be found by `check_rules()` in another."""
    before = set(dispatch._functions)
    yield
    for number in set(dispatch._functions) - before:
        dispatch._functions.pop(number, None)


def matches(pattern, A):
    return as_pattern(pattern).matches(signature(A))


d, e, low = Diagonal(), Dense(), LowRank()


# ---------------------------------------------------------------------------------------------------- patterns


def test_a_class_matches_exactly_itself_and_the_root_everything():
    assert matches(Dense, e) and not matches(Dense, d) and not matches(Dense, Sum(e, e))
    assert matches(Toy, d) and matches(Toy, Sum(e, d))


def test_ordered_operands_match_by_position():
    assert matches(Product[Dense, Diagonal], Product(e, d))
    assert not matches(Product[Dense, Diagonal], Product(d, e))


def test_commuting_operands_match_in_any_order():
    assert matches(Sum[Dense, Diagonal], Sum(e, d)) and matches(Sum[Dense, Diagonal], Sum(d, e))
    assert not matches(Sum[Dense, Diagonal], Sum(d, d))


def test_the_assignment_of_commuting_operands_is_found_where_greed_fails():
    psd = Dense(mask=5)
    assert matches(Sum[Dense, PSD[Dense]], Sum(psd, e)) and matches(
        Sum[Dense, PSD[Dense]], Sum(e, psd)
    )
    assert not matches(Sum[Dense, PSD[Dense]], Sum(e, e))


def test_brackets_fix_the_number_of_operands():
    assert not matches(Sum[Dense, Diagonal], Sum(e, d, low)) and not matches(
        Sum[Dense, Diagonal], Sum(e)
    )
    assert matches(Sum[()], Sum()) and not matches(Sum[()], Sum(e)) and matches(Sum, Sum(e))


def test_an_ellipsis_takes_any_number_of_operands_anywhere():
    for pattern, yes, no in [
        (
            Product[..., Diagonal],
            [Product(d), Product(e, d), Product(e, low, d)],
            [Product(), Product(d, e)],
        ),
        (Product[Diagonal, ...], [Product(d), Product(d, e, low)], [Product(e, d)]),
        (Product[Diagonal, ..., Diagonal], [Product(d, d), Product(d, e, d)], [Product(d)]),
        (
            Product[..., Dense, Diagonal, ...],
            [Product(low, e, d), Product(e, e, d, low)],
            [Product(e, low, d)],
        ),
        (Sum[Diagonal, ...], [Sum(e, low, d), Sum(d)], [Sum(e, e)]),
        (Sum[..., Diagonal, Diagonal], [Sum(d, e, d)], [Sum(d, e)]),
    ]:
        assert all(matches(pattern, A) for A in yes) and not any(matches(pattern, A) for A in no), (
            pattern
        )
    assert (
        Product[...] == as_pattern(Product)
        and Product[..., ..., Diagonal] == Product[..., Diagonal]
    )


def test_annotations_ask_for_all_their_bits():
    assert (
        matches(PSD, Dense(mask=5))
        and matches(PSD[Dense], Dense(mask=21))
        and matches(SelfAdjoint, Dense(mask=5))
    )
    assert not matches(PSD, Dense(mask=1)) and not matches(PSD[Diagonal], Dense(mask=5))
    assert matches(PSD[Unitary[Sum[Dense, ...]]], Sum(e, d, mask=21)) and not matches(
        PSD[Unitary], Sum(e, d, mask=5)
    )
    assert matches(Sum[PSD, Diagonal], Sum(d, Dense(mask=5)))


def test_unions_of_classes_patterns_and_annotations():
    for pattern in (
        Dense | Diagonal,
        Dense | PSD[Diagonal] | Diagonal,
        as_pattern(Dense) | Diagonal,
    ):
        assert matches(pattern, e) and matches(pattern, d) and not matches(pattern, low)
    assert matches(Dense | PSD, LowRank(mask=5)) and not matches(Dense | PSD, low)
    assert matches(PSD[Dense | Diagonal], Diagonal(mask=5)) and not matches(
        PSD[Dense | Diagonal], d
    )
    assert matches(Sum[Dense | LowRank, Diagonal], Sum(d, low))
    assert len((Dense | Diagonal | Dense | as_pattern(Diagonal)).alternatives) == 2


def test_bad_patterns_say_what_is_wrong():
    with pytest.raises(ValueError, match="nested 5 deep"):
        Sum[Product[Sum[Product[Dense]]]]
    assert Sum[Product[Sum[Product]]].depth == 4
    with pytest.raises(TypeError, match="matches every operator"):
        Toy[Dense]
    for wrong in (3, "Dense", int, ...):
        with pytest.raises(TypeError):
            as_pattern(wrong)


def test_patterns_print_as_written_and_pickle():
    from colinear.properties import PSD, Unitary

    for text, pattern in [
        ("Sum[LowRank, Diagonal]", Sum[LowRank, Diagonal]),
        ("Product[..., Dense | Diagonal]", Product[..., Dense | Diagonal]),
        ("PSD[Sum[Dense, ...]]", PSD[Sum[Dense, ...]]),
        ("PSD", as_pattern(PSD)),
        ("PSD[Unitary[Dense]]", PSD[Unitary[Dense]]),
        ("PSD[Unitary]", PSD[as_pattern(Unitary)]),
        ("LinearOperator", as_pattern(Toy)),
    ]:
        assert repr(pattern) == text
        assert pickle.loads(pickle.dumps(pattern)) == pattern and hash(pattern) == hash(
            pickle.loads(pickle.dumps(pattern))
        )
    assert (
        Sum[LowRank, Diagonal] == Sum[Diagonal, LowRank]
        and Product[LowRank, Diagonal] != Product[Diagonal, LowRank]
    )


def test_subsumption_on_examples():
    for general, special in [
        (Toy, Dense),
        (Dense, PSD[Dense]),
        (PSD, PSD[Dense]),
        (SelfAdjoint, PSD),
        (Sum, Sum[Dense, Diagonal]),
        (Sum[Dense, ...], Sum[Diagonal, Dense]),
        (Sum[Toy, Diagonal], Sum[Diagonal, Dense]),
        (Sum[Dense, ...], Sum[Dense, PSD[Dense], ...]),
        (Product[..., Diagonal], Product[Dense, ..., Diagonal]),
        (Product[..., Diagonal, ...], Product[Diagonal, Dense]),
        (Product[Toy, ...], Product[..., Dense]),
        (Product[..., Toy, ..., Toy, ...], Product[Dense, ..., Diagonal]),
        (Dense | Diagonal, Diagonal),
        (Dense | Diagonal, PSD[Diagonal] | Dense),
    ]:
        general, special = as_pattern(general), as_pattern(special)
        assert subsumes(general, special) and not subsumes(special, general), (general, special)
        assert overlaps(general, special) and overlaps(special, general)


def test_overlap_on_examples():
    for a, b, truth in [
        (Dense, Diagonal, False),
        (PSD, Dense, True),
        (Sum[Dense, Diagonal], Sum[Diagonal, PSD], True),
        (Sum[Dense, Diagonal], Sum[Diagonal, LowRank], False),
        (Sum[Dense, Diagonal], Sum[LowRank, ...], False),
        (Sum[Dense, ...], Sum[Diagonal, ...], True),
        (Sum[Dense, Dense, ...], Sum[Dense, Diagonal], False),
        (Product[Dense, ...], Product[..., Diagonal], True),
        (Product[Dense, ...], Product[Diagonal], False),
        (Product[Dense, ..., Dense], Product[Dense], False),
    ]:
        assert overlaps(as_pattern(a), as_pattern(b)) is truth, (a, b)
        assert overlaps(as_pattern(b), as_pattern(a)) is truth, (b, a)


def test_arrange_gives_operands_in_the_order_of_the_pattern():
    assert arrange(Sum(d, low), LowRank, Diagonal) == (low, d)
    assert arrange(Sum(e, d, low), ..., LowRank) == ((e, d), low)
    assert arrange(Product(e, low, d), Dense, ..., Diagonal) == (e, (low,), d)
    assert arrange(Product(e, d), ...) == ((e, d),)
    wide = Sum(*[Dense() for _ in range(20)], d)
    assert arrange(wide, Diagonal, ...)[0] is d and len(arrange(wide, Diagonal, ...)[1]) == 20
    with pytest.raises(ValueError, match="do not match"):
        arrange(Sum(d, e), LowRank, Diagonal)


# ---------------------------------------------------------------------------------------------------- against brute force
# A pattern is written here as a small tree of its own, ("class", cls), ("kids", cls, [...]), ("marked", mask, pattern),
# ("either", [...]), so that the matcher below shares nothing with the library's.

LEAVES, COMPOSED, MASKS = (Dense, Diagonal, LowRank), (Sum, Product), (0, 1, 5, 16)


def random_tree(rng, depth, widest=3):
    mask = rng.choice(MASKS)
    if depth == 1 or rng.random() < 0.3:
        return rng.choice(LEAVES)(mask=mask)
    return rng.choice(COMPOSED)(
        *[random_tree(rng, depth - 1, widest) for _ in range(rng.randint(0, widest))], mask=mask
    )


def random_pattern(rng, depth):
    draw = rng.random()
    if draw < 0.12:
        return ("marked", rng.choice(MASKS[1:]), random_pattern(rng, depth))
    if draw < 0.22:
        return ("either", [random_pattern(rng, depth) for _ in range(2)])
    if draw < 0.35:
        return ("class", Toy)
    if depth == 1 or draw < 0.5:
        return ("class", rng.choice(LEAVES + COMPOSED))
    kids = [
        ... if rng.random() < 0.25 else random_pattern(rng, depth - 1)
        for _ in range(rng.randint(0, 3))
    ]
    return ("kids", rng.choice(COMPOSED), kids)


def written(p):
    """The library's pattern for this one."""
    kind, *rest = p
    if kind == "class":
        return as_pattern(rest[0])
    if kind == "kids":
        return Pattern(rest[0], tuple(k if k is ... else written(k) for k in rest[1]))
    if kind == "marked":
        return written(rest[1]).annotated(rest[0])
    return written(rest[0][0]) | written(rest[0][1])


def brute(p, A):
    kind, *rest = p
    if kind == "class":
        return rest[0] is Toy or type(A) is rest[0]
    if kind == "marked":
        return A.properties & rest[0] == rest[0] and brute(rest[1], A)
    if kind == "either":
        return any(brute(q, A) for q in rest[0])
    cls, kids = rest
    if type(A) is not cls:
        return False
    if cls is Sum:
        return any(brute_row(kids, order) for order in itertools.permutations(A.operands))
    return brute_row(kids, A.operands)


def brute_row(kids, operands):
    if not kids:
        return not operands
    if kids[0] is ...:
        return any(brute_row(kids[1:], operands[i:]) for i in range(len(operands) + 1))
    return bool(operands) and brute(kids[0], operands[0]) and brute_row(kids[1:], operands[1:])


@pytest.mark.parametrize("seed", range(4))
def test_patterns_agree_with_brute_force_on_random_trees(seed):
    rng = random.Random(seed)
    trees = [random_tree(rng, 3) for _ in range(2500)]
    signs = [signature(A) for A in trees]
    matched = 0
    for _ in range(60):
        p = random_pattern(rng, 3)
        pattern = written(p)
        for A, s in zip(trees, signs):
            truth = brute(p, A)
            assert pattern.matches(s) == truth, (pattern, A)
            matched += truth
    assert matched > 1000


@pytest.mark.parametrize("seed", range(3))
def test_a_call_finds_exactly_the_rules_that_brute_force_finds(seed, monkeypatch):
    rng = random.Random(f"rules {seed}")
    forms = [random_pattern(rng, 3) for _ in range(60)]
    f = function("f", base=lambda A: A)
    for i, p in enumerate(forms):
        rule(f, written(p), cost=lambda A: 0.0, name=str(i))(lambda A: A)
    for _ in range(2000):
        A = random_tree(rng, 3, widest=4)
        found = {int(r.name) for r in f._resolve(signature(A)).order[:-1]}
        assert found == {i for i, p in enumerate(forms) if brute(p, A)}, A
    # where operands are forgotten, what each pattern finds by itself
    monkeypatch.setattr(signatures, "WIDEST", 2)
    for _ in range(1000):
        A = random_tree(rng, 3, widest=4)
        found = {int(r.name) for r in f._resolve(signature(A)).order[:-1]}
        assert found == {i for i, p in enumerate(forms) if written(p).matches(signature(A))}, A


@pytest.mark.parametrize("seed", range(4))
def test_subsumption_overlap_and_meet_are_sound_on_random_trees(seed):
    rng = random.Random(100 + seed)
    trees = [random_tree(rng, 3) for _ in range(1200)]
    forms = [random_pattern(rng, 3) for _ in range(60)]
    sets = [{i for i, A in enumerate(trees) if brute(p, A)} for p in forms]
    library = [written(p) for p in forms]
    proper = disjoint = 0
    for (P, p), (Q, q) in itertools.product(zip(library, sets), repeat=2):
        if subsumes(P, Q):
            assert q <= p, (P, Q)
            proper += q != p
        if p & q:
            assert overlaps(P, Q), (P, Q)
        if not overlaps(P, Q):
            disjoint += 1
            assert not list(itertools.islice(meet(P, Q), 1))
    assert proper > 50 and disjoint > 50
    for P, Q in [rng.sample(library, 2) for _ in range(150)]:
        common = list(itertools.islice(meet(P, Q), 200))
        if len(common) < 200:
            for s in map(signature, trees[:300]):
                assert any(c.matches(s) for c in common) == (P.matches(s) and Q.matches(s)), (
                    P,
                    Q,
                    s,
                )


@pytest.mark.parametrize("seed", range(4))
def test_collapsed_and_cut_signatures_never_match_what_the_tree_does_not(seed, monkeypatch):
    for module in (signatures, patterns):
        monkeypatch.setattr(module, "WIDEST", 3)
        monkeypatch.setattr(module, "LEVELS", 3)
    monkeypatch.setattr(signatures, "MOST_DISTINCT", 2)
    rng = random.Random(200 + seed)
    trees = [random_tree(rng, 5, widest=5) for _ in range(1500)]
    trees += [
        rng.choice(COMPOSED)(*[Diagonal() for _ in range(5)], *[Dense()] * rng.randint(0, 1))
        for _ in range(50)
    ]
    signs = [signature(A) for A in trees]
    forgotten = sum(s.collapsed for s in signs)
    forms = [random_pattern(rng, 3) for _ in range(60)]
    library = [written(p) for p in forms]
    matched = 0
    for p, P in zip(forms, library):
        for A, s in zip(trees, signs):
            if P.matches(s):
                assert brute(p, A), (P, A)
                matched += s.collapsed
    assert forgotten > 200 and matched > 200
    for P, Q in itertools.product(library, repeat=2):
        if subsumes(P, Q):
            assert all(P.matches(s) for s in signs if Q.matches(s)), (P, Q)


# ---------------------------------------------------------------------------------------------------- signatures


def test_equal_structures_share_one_signature_and_the_operator_remembers_it():
    A, B = Sum(Dense(), Diagonal()), Sum(Diagonal(), Dense())
    assert signature(A) is signature(B) and A._signature is signature(A)
    assert signature(Product(e, d)) is not signature(Product(d, e)) and signature(
        Dense(mask=1)
    ) is not signature(Dense())


def test_a_wide_sum_matches_open_patterns_only():
    nine = Sum(*[Dense() for _ in range(8)], Diagonal())
    assert (
        matches(Sum[Diagonal, ...], nine)
        and matches(Sum, nine)
        and matches(Sum[Dense, Diagonal, ...], nine)
    )
    assert matches(Sum[Toy, Toy, Toy, ...], nine)
    assert not matches(Sum[Dense, Diagonal], nine) and not matches(Sum[LowRank, ...], nine)
    assert not matches(Sum[Diagonal, Diagonal, ...], nine)
    assert matches(Sum[Dense, Dense, ...], Sum(*[Dense() for _ in range(9)]))
    row = Product(Diagonal(), *[Dense() for _ in range(8)], LowRank())
    assert matches(Product[Diagonal, ...], row) and matches(Product[Diagonal, ..., LowRank], row)
    assert matches(Product[Diagonal, Dense, ...], row) and matches(
        Product[..., Dense, Dense, ...], row
    )
    assert not matches(Product[Diagonal, LowRank], row) and not matches(Product[..., Diagonal], row)


def test_a_signature_ends_after_four_levels():
    chain = Product(Product(Product(Product(Product(Dense())))))
    assert matches(Product[Product[Product[Product]]], chain)
    assert (
        signature(chain).depth == 4
        and signature(chain).children[0].children[0].children[0].children is None
    )


def test_a_tree_nested_a_hundred_thousand_deep_is_dispatched():
    A = Dense()
    keep = [A]
    for _ in range(100_000):
        A = Product(A)
        keep.append(A)
    assert matches(Product[Product[Product]], A)
    assert f_of_structure(A) == "base"
    while keep:  # Python's own deallocation of such a chain recurses, so take it apart from the top
        A = keep.pop()
    gc.collect()


def test_a_sum_of_a_million_terms_is_dispatched():
    term = [Dense(), Diagonal(), Product(Dense(), Diagonal())]
    A = Sum(*(term[i % 3] for i in range(1_000_000)))
    assert matches(Sum[Diagonal, ...], A) and not matches(Sum[Diagonal, Dense], A)
    assert len(signature(A).children) == 3


def test_shared_operands_are_looked_at_once():
    looked = []

    class Watched(Toy):
        @property
        def operands(self):
            looked.append(self)
            return self.inner

        @operands.setter
        def operands(self, value):
            self.inner = value

    bottom = Product(*[Watched() for _ in range(50)])
    signature(Sum(*[Product(*[bottom] * 50) for _ in range(50)]))
    assert len(looked) == 50


f_of_structure = function("f_of_structure", base=lambda A: "base")


def test_operators_with_remembered_signatures_and_signatures_pickle():
    A = Sum(Dense(), *[Diagonal() for _ in range(20)])
    s = signature(A)
    assert pickle.loads(pickle.dumps(s)) is s
    B = pickle.loads(pickle.dumps(A))
    assert signature(B) is s


def test_tables_are_bounded_and_emptying_them_loses_nothing(monkeypatch):
    signatures.forget()
    monkeypatch.setattr(signatures, "MOST_SIGNATURES", 50)
    monkeypatch.setattr(functions, "MOST_STRUCTURES", 10)
    f = function("f", base=lambda A: "base")
    rule(f, Sum[Dense, Diagonal])(lambda A: "rule")
    old = Sum(Dense(), Diagonal())
    assert f(old) == "rule"
    for mask in range(300):
        assert (
            f(Dense(mask=mask)) == "base"
            and f(Sum(Diagonal(), Dense(mask=mask))) == "rule"
            and f(old) == "rule"
        )
        assert len(signatures._table) <= 50 and len(f._cache) <= 10


def test_threads_agree():
    f = function("f", base=lambda A: "base")
    rule(f, Sum[Dense, Diagonal])(lambda A: "rule")
    failures, seen = [], []
    start = threading.Barrier(8)

    def work():
        try:
            start.wait()
            for mask in range(300):
                assert f(Sum(Dense(mask=mask), Diagonal())) == "rule"
                seen.append(signature(Product(Dense(mask=mask))))
                if mask % 50 == 0:
                    rule(f, Kronecker, name=f"k{mask}")(lambda A: "kronecker")
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures and len(set(seen)) == 300
    assert len(f.rules) == 7


# ---------------------------------------------------------------------------------------------------- resolution


def test_the_more_specific_rule_wins_whatever_the_order_of_registration():
    two = Sum[Dense, Diagonal]
    made = [(Toy, "any"), (Sum, "sum"), (Sum[Dense, ...], "open"), (two, "two"), (PSD[two], "psd")]
    for order in itertools.permutations(made):
        f = function("f", base=lambda A: "base")
        for pattern, name in order:
            rule(f, pattern, name=name)(lambda A, name=name: name)
        assert f(Sum(d, e, mask=5)) == "psd" and f(Sum(d, e)) == "two" and f(Sum(d, e, e)) == "open"
        assert f(Sum(d)) == "sum" and f(d) == "any"
    assert not check_rules(f)


def test_no_rule_means_the_base_case():
    f = function("f", base=lambda A: "base")
    rule(f, Dense)(lambda A: "dense")
    assert f(Diagonal()) == "base" and f(Dense()) == "dense"


def test_guards_are_tried_in_order_of_specificity_and_the_guarded_rule_first():
    f = function("f", base=lambda A: "base")
    rule(f, Sum, name="plain")(lambda A: "plain")
    rule(f, Sum, when=lambda A: len(A.operands) == 2, name="two")(lambda A: "two")
    rule(f, Sum[Dense, ...], when=lambda A: len(A.operands) == 3, name="three")(lambda A: "three")
    assert (
        f(Sum(d, d)) == "two"
        and f(Sum(d, d, d)) == "plain"
        and f(Sum(d, d, e)) == "three"
        and f(Sum(e, d)) == "two"
    )
    assert not check_rules(f)


def test_guards_of_one_pattern_are_cases_in_the_order_written():
    f = function("f", base=lambda A: "base")
    rule(f, Sum, when=lambda A: len(A.operands) > 1, name="first")(lambda A: "first")
    rule(f, Sum, when=lambda A: len(A.operands) > 0, name="second")(lambda A: "second")
    assert f(Sum(d, d)) == "first" and f(Sum(d)) == "second" and f(Sum()) == "base"
    assert not check_rules(f)


def test_ambiguity_is_an_error_that_names_both_rules_and_check_rules_finds_it():
    f = function("f", base=lambda A: "base")
    rule(f, Product[Dense, ...], name="left")(lambda A: "left")
    rule(f, Product[..., Diagonal], name="right")(lambda A: "right")
    with pytest.raises(
        AmbiguityError,
        match=r"left \(for Product\[Dense, ...\]\) and right \(for Product\[..., Diagonal\]\)",
    ):
        f(Product(e, d))
    assert f(Product(e, e)) == "left" and f(Product(d, d)) == "right"
    (pair,) = check_rules(f)
    assert {pair.first.name, pair.second.name} == {"left", "right"} and pair in check_rules()
    # [Dense] alone is no Diagonal: this is the meet
    rule(f, Product[Dense, ..., Diagonal], name="both")(lambda A: "both")
    assert not check_rules(f) and f(Product(e, d)) == "both"


def test_a_guarded_rule_for_the_meet_does_not_decide():
    f = function("f", base=lambda A: "base")
    rule(f, Product[Dense, ...], name="left")(lambda A: "left")
    rule(f, Product[..., Diagonal], name="right")(lambda A: "right")
    rule(f, Product[Dense, ..., Diagonal], when=lambda A: False, name="both")(lambda A: "both")
    assert len(check_rules(f)) == 1
    with pytest.raises(AmbiguityError):
        f(Product(e, d))


def test_ambiguity_counts_only_rules_whose_guards_hold():
    f = function("f", base=lambda A: "base")
    rule(f, PSD, when=lambda A: A.operands == (), name="marked")(lambda A: "marked")
    rule(f, Sum, name="sum")(lambda A: "sum")
    assert f(Sum(d, mask=5)) == "sum" and f(Dense(mask=5)) == "marked"
    with pytest.raises(AmbiguityError):
        f(Sum(mask=5))


def test_two_rules_for_one_pattern_are_ambiguous():
    f = function("f", base=lambda A: "base")
    rule(f, Sum[Dense, Diagonal], name="a")(lambda A: "a")
    rule(f, Sum[Diagonal, Dense], name="b")(lambda A: "b")
    assert len(check_rules(f)) == 1
    with pytest.raises(AmbiguityError):
        f(Sum(e, d))


def test_of_incomparable_rules_with_costs_the_cheapest_wins():
    f = function("f", base=lambda A: "base")
    rule(f, PSD, cost=lambda A: 100.0 * len(A.operands), name="marked")(lambda A: "marked")
    rule(f, Sum, cost=lambda A: Cost(250.0, 1.0), name="sum")(lambda A: "sum")
    rule(f, Sum[Diagonal, ...], cost=lambda A: 1e9, name="specific")(lambda A: "specific")
    assert f(Sum(e, e, mask=5)) == "marked" and f(Sum(e, e, e, mask=5)) == "sum"
    assert f(Sum(d)) == "specific"  # more specific beats cheaper
    assert not check_rules(f)
    rule(f, Sum[Dense, ...], name="costless")(lambda A: "costless")
    with pytest.raises(AmbiguityError):
        f(Sum(e, e, mask=5))


def test_a_rule_of_the_same_name_and_pattern_is_replaced():
    f = function("f", base=lambda A: "base")

    def first(A):
        return 1

    def again(A):
        return 2

    assert rule(f, Sum[Dense, Diagonal], name="it")(first) is first
    assert f(Sum(e, d)) == 1
    rule(f, Sum[Diagonal, Dense], name="it")(again)
    assert f(Sum(e, d)) == 2 and len(f.rules) == 1


def test_a_new_rule_is_seen_by_operators_that_were_dispatched_before():
    f = function("f", base=lambda A: "base")
    assert f(d) == "base"
    rule(f, Diagonal)(lambda A: "rule")
    assert f(d) == "rule"


def test_a_union_registers_under_each_of_its_classes():
    f = function("f", base=lambda A: "base")
    rule(f, Dense | Sum[Diagonal, ...] | PSD, name="either")(lambda A: "either")
    assert (
        f(e) == f(Sum(d)) == f(LowRank(mask=5)) == f(Dense(mask=5)) == "either" and f(low) == "base"
    )


def test_a_rule_for_a_union_is_as_specific_as_the_alternative_that_matches():
    f = function("f", base=lambda A: "base")
    rule(f, Sum, name="sum")(lambda A: "sum")
    rule(f, Kronecker[Dense, ...], name="kronecker")(lambda A: "kronecker")
    rule(f, PSD[Sum] | Kronecker, name="either")(lambda A: "either")
    assert not check_rules(f)
    assert f(Sum(e)) == "sum" and f(Sum(e, mask=5)) == "either"
    assert f(Kronecker(e)) == "kronecker" and f(Kronecker(d)) == "either"


def test_the_alternatives_of_a_union_do_not_compete_with_each_other():
    f = function("f", base=lambda A: "base")
    rule(f, Sum[Dense, ...] | PSD | Sum[Dense, Diagonal], name="union")(lambda A: "union")
    rule(f, Sum[..., Diagonal], name="other")(lambda A: "other")
    assert f(Sum(e, mask=5)) == "union" and f(Sum(e, d)) == "union" and f(Sum(d, d)) == "other"
    with pytest.raises(AmbiguityError, match="union"):
        f(Sum(e, e, d))
    with pytest.raises(AmbiguityError, match="union"):
        f(Sum(d, mask=5))
    assert {(p.first.pattern, p.second.pattern) for p in check_rules(f)} == {
        (Sum[Dense, ...], Sum[Diagonal, ...]),
        (as_pattern(PSD), Sum[Diagonal, ...]),
    }


# ---------------------------------------------------------------------------------------------------- calls


def solve_base(A, b, shift=0, method=None):
    """Solve A x = b."""
    return ("base", b, shift, method)


class CG:
    _is_method = True


def test_arguments_are_bound_to_the_parameters_of_the_base_case():
    f = function("f", base=solve_base)
    rule(f, Dense)(lambda A, b, shift, method: ("rule", b, shift, method))
    cg = CG()
    assert (
        f(d, 1) == ("base", 1, 0, None)
        and f(e, b=1, method=cg) == ("rule", 1, 0, cg)
        and f(e, 1, 2, cg) == ("rule", 1, 2, cg)
    )
    assert (
        str(inspect.signature(f))
        == "(A, b, shift=0, method=None, *, info: 'bool' = False, on_failure: 'str' = 'warn')"
    )
    assert f.__doc__ == "Solve A x = b." and f.__name__ == "f" and "f" in repr(f)


@pytest.mark.parametrize(
    "arguments, keywords, message",
    [
        ((d,), {}, r"f\(\) missing 1 required positional argument: 'b'"),
        ((d, 1, 2, None, 4), {}, r"f\(\) takes 4 positional arguments, 5 were given"),
        ((d, 1), {"b": 2}, r"f\(\) got multiple values for argument 'b'"),
        ((d, 1), {"tolerance": 2}, r"f\(\) got an unexpected keyword argument 'tolerance'"),
    ],
)
def test_wrong_arguments_are_type_errors_that_name_the_function(arguments, keywords, message):
    with pytest.raises(TypeError, match=message):
        function("f", base=solve_base)(*arguments, **keywords)


def test_the_operator_may_stand_elsewhere_in_the_call():
    apply = function("apply", base=lambda A, f, method=None: (A, f), operand=1)
    rule(apply, Dense)(lambda A, f, method: (A, f, method))
    assert (
        apply("f", d) == (d, "f")
        and apply("f", e) == (e, "f", None)
        and apply(A=e, f="f") == (e, "f", None)
    )


def test_keyword_only_parameters_of_the_base_case_stay_so_for_callers():
    f = function("f", base=lambda A, *, vector=False, method=None: (vector, method))
    rule(f, Dense)(lambda A, vector, method: ("rule", vector, method))
    assert f(d, vector=True) == (True, None) and f(e, vector=1) == ("rule", 1, None)
    with pytest.raises(TypeError, match="takes 1 positional arguments, 2 were given"):
        f(d, True)


def test_bad_base_cases_and_bad_rules_are_refused():
    for bad in (lambda *args: 0, lambda A, **options: 0, lambda: 0, lambda A, info: 0):
        with pytest.raises(TypeError):
            function("f", base=bad)
    f = function("f", base=solve_base)
    with pytest.raises(TypeError, match=r"rule\(A, b, shift, method\)"):
        rule(f, Dense)(lambda A, method: 0)
    with pytest.raises(TypeError, match="not a function made by"):
        rule(solve_base, Dense)


def test_a_method_must_be_a_method_object(monkeypatch):
    monkeypatch.setattr(calls, "_method_names", lambda: ("CG", "LU"))
    f = function("f", base=solve_base)
    names = r"one of CG\(\), LU\(\)"
    for wrong, advice in [
        ("cg", r"Write CG\(\)"),
        (CG, r"Write CG\(\)"),
        ("simplex", names),
        (3, names),
    ]:
        with pytest.raises(MethodError, match=advice):
            f(d, 1, method=wrong)


def test_what_is_not_an_operator_is_converted_or_refused(monkeypatch):
    f = function("f", base=lambda A: type(A).__name__)
    with pytest.raises(TypeError, match="expected a matrix or a linear operator, not object"):
        f(object())
    monkeypatch.setattr(functions, "_converter", lambda x: Dense())
    assert f([[1.0]]) == "Dense"


def test_functions_pickle_by_reference():
    assert pickle.loads(pickle.dumps(importable)) is importable


importable = function("importable", base=solve_base)


# ---------------------------------------------------------------------------------------------------- the library itself


def test_no_two_rules_of_the_library_are_ambiguous():
    import colinear

    functions = [f for f in vars(colinear).values() if isinstance(f, dispatch.Function)]
    assert len(functions) > 20
    assert [str(pair) for f in functions for pair in check_rules(f)] == []


def test_real_operators_are_dispatched_like_the_toys():
    import numpy as np

    import colinear as co

    A = co.Diagonal(np.ones(3)) + co.LowRank(np.ones((3, 1)))
    assert (
        matches(co.Sum[co.LowRank, co.Diagonal], A)
        and matches(co.LinearOperator, A)
        and not matches(co.Sum[co.Diagonal], A)
    )
    assert matches(co.PSD[co.Dense], co.PSD(np.eye(3))) and not matches(
        co.PSD[co.Dense], co.Dense(np.eye(3))
    )
    assert [type(B) for B in arrange(A, co.LowRank, co.Diagonal)] == [co.LowRank, co.Diagonal]
    assert signature(pickle.loads(pickle.dumps(A))) is signature(A)
    f = function("f", base=lambda A, method=None: "base")
    rule(f, co.Sum[co.Diagonal, ...])(lambda A, method: "rule")
    assert f(A) == "rule" and f(np.eye(3)) == "base"
    with pytest.raises(MethodError, match=r"Write LU\(\)"):
        f(A, "lu")


# ---------------------------------------------------------------------------------------------------- torch.compile


def test_dispatch_does_not_break_the_graph_nor_compile_again():
    torch = pytest.importorskip("torch")
    from torch._dynamo.testing import CompileCounter

    from colinear import backends

    backends.get("torch")

    class Held(Toy):
        def __init__(self, x, mask=0):
            super().__init__(mask=mask)
            object.__setattr__(self, "x", x)

    trace = function("trace", base=lambda A, scale=1.0, method=None: A.x.sum() * scale)

    @rule(trace, Sum[Held, ...], when=lambda A: len(A.operands) < 5)
    def trace_sum(A, scale, method):
        return sum(trace(operand, scale, method) for operand in A.operands)

    @rule(trace, Product[Held, PSD[Held]])
    def trace_product(A, scale, method):
        first, second = arrange(A, Held, Held)
        return (first.x * second.x).sum() * scale

    x = torch.ones(3)

    def inside(x):
        return trace(Sum(Held(x), Product(Held(x), Held(x, mask=5)), Held(x)), 2.0)

    def outside(A, x):
        return trace(A) + x

    counter = CompileCounter()
    compiled = torch.compile(inside, backend=counter, fullgraph=True)
    assert compiled(x) == inside(x) == 18.0
    A = Sum(Held(x), Held(2 * x))
    compiled_outside = torch.compile(outside, backend=counter, fullgraph=True)
    assert torch.equal(compiled_outside(A, x), x + 9)
    assert counter.frame_count == 2
    trace(A)  # remembers the signature, and fills the tables
    for mask in range(20):
        trace(Held(x, mask=mask))
    assert compiled(x + 1) == 2 * (6 + 12 + 6) and torch.equal(compiled_outside(A, x), x + 9)
    assert torch.equal(compiled_outside(Sum(Held(x), Held(2 * x)), x), x + 9)
    assert counter.frame_count == 2
    rule(trace, Held, name="new")(lambda A, scale, method: A.x.sum() * 0)  # a new rule is new code
    assert compiled(x) == 6.0 and counter.frame_count == 3
