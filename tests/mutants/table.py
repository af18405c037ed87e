"""Mistakes that somebody could make, with the tests that must notice them. Small, plausible, one each.

Most are about wires: a formula that is right, and a caller that hands it the wrong number or drops what it returns. An
entry names file, old text (found exactly once), new text, what would go wrong, and tests that fail on it. Whoever adds
a feature adds its mistakes; whoever moves code moves the text. ``harmless`` says why no fast test can or need notice.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """One mistake: edits of one file, what they would mean, the tests that should fail."""

    file: str
    edits: tuple[tuple[str, str], ...]
    why: str
    tests: tuple[str, ...]
    harmless: str = ""

    @property
    def text(self) -> str:
        """What the words of the command line are looked for in."""
        return " ".join((self.file, self.why, *self.tests))


MUTANTS: list[Mutant] = []


def mutant(
    file: str, old: str, new: str, why: str, *tests: str, also: tuple[str, str] | None = None, **more: str
) -> None:
    """Add one to the list; ``also`` is a second edit of the same file."""
    edits = ((old, new),) if also is None else ((old, new), also)
    MUTANTS.append(Mutant(f"src/dpscp/{file}", edits, why, tests, **more))


# ---- privacy: events

ACCOUNTING, SOLVING, GROUP, LEDGER, NOISE, TRADEOFF = (
    f"tests/privacy/test_{name}.py" for name in ("accounting", "solving", "group", "ledger", "noise", "tradeoff")
)
SPIES = "tests/test_wiring.py"
mutant(
    "privacy/events.py",
    'SelfComposedDpEvent(step, _count("steps", steps))',
    "step",
    "sampled training costs as much as its first step",
    "tests/training/test_dpsgd.py::test_event_is_known_before_the_data",
)
mutant(
    "privacy/events.py",
    "return gaussian_event(noise_multiplier, steps)",
    "return gaussian_event(noise_multiplier)",
    "full-batch training costs as much as its first step",
    "tests/training/test_dpsgd.py::test_event_is_known_before_the_data",
)
mutant(
    "privacy/events.py",
    "[h for part in event.events for h in _histories(part)]",
    "[h for part in event.events[:1] for h in _histories(part)]",
    "of disjoint parts only the first counts",
    f"{ACCOUNTING}::test_parallel_inside_sequential_takes_the_worst_history",
)
mutant(
    "privacy/events.py",
    "for part in event.events:\n        choices",
    "for part in event.events[:2]:\n        choices",
    "a third entry of a ledger is free",
    f"{ACCOUNTING}::test_gaussians_are_exact",
)
mutant(
    "privacy/events.py",
    "basic.noise_multiplier / count**0.5",
    "basic.noise_multiplier",
    "several releases within one sample cost one",
    f"{ACCOUNTING}::test_sampled_releases_share_one_sample",
)
mutant(
    "privacy/events.py",
    'check_nonnegative("noise_multiplier", event.noise_multiplier) == 0',
    'check_nonnegative("noise_multiplier", event.noise_multiplier) < 0',
    "a release without noise is not called non-private",
    f"{ACCOUNTING}::test_a_step_without_privacy_costs_everything",
)
mutant(
    "privacy/events.py",
    "Counter({e: k * event.count for e, k in h.items()})",
    "Counter({e: k for e, k in h.items()})",
    "a repeated event counts once",
    f"{ACCOUNTING}::test_gaussians_are_exact",
)

# ---- privacy: accounting

mutant(
    "privacy/accounting/base.py",
    "return max(profile.epsilon(",
    "return min(profile.epsilon(",
    "the better of two disjoint parts counts",
    f"{ACCOUNTING}::test_parallel_costs_the_worst_part_and_not_the_sum",
)
mutant(
    "privacy/accounting/pld.py",
    "mu_squared = sum(n / e",
    "mu_squared = sum(1 / e",
    "Gaussian releases beside others count once each",
    f"{ACCOUNTING}::test_continuous_noise_counts_beside_other_events",
)
mutant(
    "privacy/accounting/rdp.py",
    "GaussianDpEvent(event.sigma / event.sensitivity)",
    "GaussianDpEvent(event.sigma)",
    "Renyi accounting forgets the sensitivity of integer noise",
    f"{ACCOUNTING}::test_count_noise_of_the_search_alone",
    f"{SOLVING}::test_noise_scales_with_sensitivity",
)
mutant(
    "privacy/accounting/base.py",
    "self.delta(event, epsilons, _OPPOSITE[direction])",
    "self.delta(event, epsilons, direction)",
    "the trade-off's other half is taken from the same direction",
    f"{ACCOUNTING}::test_add_direction_of_one_sampled_step_is_the_neyman_pearson_curve",
)
mutant(
    "privacy/accounting/pld.py",
    'loss._pmf_add if direction == "add" else loss._pmf_remove',
    'loss._pmf_remove if direction == "add" else loss._pmf_add',
    "adding and removing a record exchanged",
    f"{ACCOUNTING}::test_add_direction_of_one_sampled_step_is_the_neyman_pearson_curve",
)
mutant(
    "privacy/accounting/pld.py",
    "masses, float(below[-1]), True)",
    "masses, 0.0, True)",
    "the far tail of integer noise is dropped",
    f"{ACCOUNTING}::test_discrete_gaussian_loss_against_enumeration",
    harmless="below 1e-18 of the mass by construction: rounding of the same size is not seen either",
)
mutant(
    "privacy/accounting/pld.py",
    "below_shifted = discrete_gaussian_cdf(first - 1 - sensitivity, sigma)",
    "below_shifted = discrete_gaussian_cdf(first - 1 - sensitivity // 2, sigma)",
    "integer noise accounted for half the sensitivity",
    f"{ACCOUNTING}::test_discrete_gaussian_loss_against_enumeration",
)
mutant(
    "privacy/accounting/pld.py",
    "return one.self_compose(count, _TAIL) if count > 1 else one",
    "return one",
    "many counts cost one",
    f"{ACCOUNTING}::test_discrete_gaussian_loss_against_enumeration",
)

mutant(
    "privacy/accounting/base.py",
    'directions: tuple[Direction, ...] = ("add", "remove")',
    'directions: tuple[Direction, ...] = ("add",)',
    "groups: someone who takes records out is forgotten",
    f"{GROUP}::test_both_directions_count",
)
mutant(
    "privacy/accounting/group.py",
    "for _ in range(rows):",
    "for _ in range(rows - 1):",
    "groups: one record too few",
    f"{GROUP}::test_integer_noise_against_the_mechanism_with_k_times_the_sensitivity",
)
mutant(
    "privacy/accounting/base.py",
    "gdp_epsilon(delta, rows * mu)",
    "gdp_epsilon(delta, math.sqrt(rows) * mu)",
    "groups: records of one person counted as if they were independent releases",
    f"{GROUP}::test_gaussian_noise_costs_k_times_mu_exactly",
)

# ---- privacy: ledger, calibrate, tradeoff, noise

mutant(
    "privacy/ledger.py",
    "if not spent <= self.epsilon:",
    "if spent > 1.01 * self.epsilon:",
    "a budget may be exceeded by a hundredth",
    f"{LEDGER}::test_a_budget_is_not_exceeded_by_a_hair",
)
mutant(
    "privacy/ledger.py", "self.seeded or other.seeded", "self.seeded", "a seeded model's ledger looks private", LEDGER
)
mutant(
    "privacy/ledger.py",
    "not self.seeded and not self.non_private_stages",
    "not self.non_private_stages",
    "a seeded run looks private",
    f"{LEDGER}::test_a_seed_is_marked",
)
mutant(
    "privacy/ledger.py",
    "entries)), facts, seeded)",
    "entries)), facts)",
    "a ledger read back forgets that it was seeded",
    f"{LEDGER}::test_json_round_trip",
)
mutant(
    "privacy/ledger.py",
    "epsilon_of(self.event, delta, accountant, self.rows if",
    "epsilon_of(self.event, delta, 'pld', self.rows if",
    "the ledger ignores the accountant",
    f"{LEDGER}::test_a_budget_is_not_exceeded_by_a_hair",
)
mutant(
    "privacy/solving.py",
    "zip(lattices(ratio), counts, strict=True)",
    "zip(lattices(ratio), counts[:1], strict=False)",
    "several levels, noise for one",
    f"{SPIES}::test_a_split_ledger_holds_every_level",
)
mutant(
    "privacy/solving.py",
    "bad, bad_cost = middle, middle_cost\n    return good",
    "bad, bad_cost = middle, middle_cost\n    return bad",
    "the search for the noise ends on the wrong side",
    f"{SPIES}::test_a_split_ledger_holds_every_level",
)
mutant(
    "privacy/solving.py",
    "return compose(spent, calibration) if",
    "return calibration if",
    "calibration noise forgets what training spent",
    f"{SPIES}::test_records_used_twice_count_twice",
)
mutant(
    "privacy/solving.py",
    "return dpsgd_event(noise, sampling_rate, steps)",
    "return dpsgd_event(noise, sampling_rate, max(1, steps - 1))",
    "training noise solved for one step less",
    f"{SPIES}::test_a_split_ledger_holds_every_level",
)
mutant(
    "privacy/tradeoff.py",
    "if middle in (bad, good):\n            return good",
    "if middle in (bad, good):\n            return bad",
    "conversions round to the unsafe side",
    f"{TRADEOFF}::test_mu_is_the_largest_that_fits",
)
mutant(
    "guarantees/stability.py",
    '"cross_entropy": math.sqrt(2.0) / 4',
    '"cross_entropy": 0.25',
    "the scores of a softmax head move less than they do",
    "tests/training/test_stability.py::test_softmax_constants_bound_random_heads",
)
mutant(
    "privacy/tradeoff.py",
    "special.ndtr(-special.ndtri(x) - mu)",
    "special.ndtr(-special.ndtri(x) - mu / 2)",
    "half of mu in the Gaussian trade-off",
    f"{TRADEOFF}::test_gaussian_form",
)
mutant(
    "privacy/noise.py",
    "sample_discrete_gaussian(self.sigma, size",
    "sample_discrete_gaussian(round(0.98 * self.sigma), size",
    "integer noise of .98 of its scale",
    f"{SPIES}::test_the_noise_that_is_drawn_is_the_noise_of_the_event",
)
mutant(
    "privacy/noise.py",
    "scale = sigma * t\n",
    "scale = sigma * t\n    sigma = round(0.98 * sigma)\n",
    "the sampler aims at .98 of the scale",
    f"{NOISE}::test_each_candidate_is_accepted_with_its_exact_probability",
)
mutant(
    "privacy/noise.py",
    "source.bernoulli_exp(rest[index] * rest[index], 2 * scale * scale)",
    "source.bernoulli_exp(rest[index] * rest[index], scale * scale)",
    "a factor lost in the sampler",
    f"{NOISE}::test_each_candidate_is_accepted_with_its_exact_probability",
)
mutant(
    "privacy/noise.py",
    "sigma = math.ceil(Fraction(count_noise) * scale)",
    "sigma = math.floor(Fraction(count_noise) * scale)",
    "the integer scale is rounded down",
    f"{NOISE}::test_lattice_noise",
)
mutant(
    "privacy/noise.py",
    "Fraction(max(1, math.ceil(",
    "Fraction(max(1, math.floor(",
    "sensitivities are rounded down",
    f"{NOISE}::test_float_sensitivities_are_never_rounded_down",
)
mutant(
    "privacy/seeds.py",
    "np.random.default_rng([seed, _INTEGER_NOISE]).bytes",
    "np.random.default_rng(seed).bytes",
    "training and search share a seeded stream",
    f"{NOISE}::test_training_and_search_do_not_share_a_seeded_stream",
)
mutant(
    "privacy/seeds.py",
    'key=int.from_bytes(os.urandom(16), "little")',
    'key=int.from_bytes(os.urandom(4), "little")',
    "a key of 32 bits",
    f"{NOISE}::test_the_whole_key_comes_from_the_system",
)

# ---- quantile

SEARCH, COUNTS = "tests/quantile/test_search.py", "tests/quantile/test_counts.py"
mutant(
    "quantile/search.py",
    "plan.noise(steps), nominal if n_min is None else n_min",
    "plan.noise(steps), nominal",
    "small groups get the offset of large ones",
    f"{SEARCH}::TestRankStatistic::test_n_min_sets_the_offset",
)
mutant(
    "quantile/search.py",
    '"linear": max(level, 1 - level)',
    '"linear": 1 - level',
    "the linear statistic's sensitivity is wrong for levels below one half",
    f"{SEARCH}::TestRankStatistic",
)
mutant(
    "quantile/search.py",
    '"centred": Fraction(1, 2)',
    '"centred": Fraction(49, 100)',
    "the centred statistic's sensitivity is two percent short",
    f"{SEARCH}::TestRankStatistic",
)
mutant(
    "quantile/search.py",
    "LatticeNoise.of(count_noise or 0.0, sensitivity), sensitivity,",
    "LatticeNoise.of(count_noise or 0.0, Fraction(1, 4)), sensitivity,",
    "integer noise made for another sensitivity",
    f"{SEARCH}::TestRankStatistic::test_sensitivity_by_brute_force",
    f"{SPIES}::test_the_noise_that_is_drawn_is_the_noise_of_the_event",
)
mutant(
    "quantile/search.py",
    "_Aim(level, rank, correction, nominal, least",
    "_Aim(level, rank, correction, counter.size, least",
    "the result of a search holds the exact number of scores",
    f"{SEARCH}::TestThreshold::test_result_holds_public_numbers_only",
)
mutant(
    "quantile/search.py",
    "self.wanted_rank - weight * (self.planned + 1) + offset",
    "self.wanted_rank - weight * (self.planned + 1)",
    "the offset is computed and not used",
    f"{SEARCH}::TestRankStatistic::test_bar_is_the_rank_target_when_n_is_nominal",
)
mutant(
    "quantile/search.py",
    "level = Fraction(math.floor(exact * _LEVEL_UNIT), _LEVEL_UNIT)",
    "level = Fraction(math.ceil(exact * _LEVEL_UNIT), _LEVEL_UNIT)",
    "the level is rounded up",
    f"{SEARCH}::TestRoundLevel",
)
mutant(
    "quantile/search.py",
    "offset = math.ceil(rank_buffer) + aim",
    "offset = aim",
    "the paper's rank buffer is not used",
    f"{SEARCH}::TestRankStatistic::test_rank_buffer_counts_whole_ranks",
)
mutant(
    "quantile/search.py",
    "if margin >= rise:",
    "if margin >= 0:",
    "early steps aim no higher than the last one",
    "tests/test_audit.py::test_a_search_tells_the_counts_that_decided_and_finds_what_it_finds_unwatched",
)
mutant(
    "quantile/correction.py",
    "c - expected_maximum(steps) - _shortfall(c - cap, steps)",
    "c - expected_maximum(steps)",
    "the correction forgets that counts end at n",
    "tests/quantile/test_correction.py::TestMarginalOffset",
)
mutant(
    "quantile/counts.py",
    "above | (~below & (b >= a)), 1.0, -1.0",
    "above | (~below & (b < a)), 1.0, -1.0",
    "a bracket across the point where the grid is fine is cut on the wrong side",
    f"{COUNTS}::test_the_middle_of_a_bracket_is_that_of_the_coordinate",
)
mutant(
    "quantile/counts.py",
    "- knee / (1 + ratio)",
    "- knee * (ratio / (1 + ratio))",
    "a grid that is fine near both ends is cut with the knee of the other",
    f"{COUNTS}::test_the_middle_of_a_bracket_is_that_of_the_coordinate",
)
mutant(
    "tasks.py",
    "return 0.0 if low <= 0 <= high else None",
    "return high if low <= 0 <= high else None",
    "thresholds of residuals are told apart where none lie",
    f"{SPIES}::test_predictions_stay_in_the_declared_range_and_thresholds_are_fine_where_scores_crowd",
)
mutant(
    "quantile/counts.py",
    "scores[i : i + _BLOCK] <= bound",
    "scores[i : i + _BLOCK] < bound",
    "ties are not counted",
    f"{COUNTS}::test_every_count_is_exact",
)
mutant(
    "quantile/counts.py",
    "self._known[threshold] = self._base + self._pass(threshold)",
    "self._known[threshold] = self._pass(threshold)",
    "scores below the bracket are forgotten",
    f"{COUNTS}::test_every_source_walks_the_naive_path",
)
mutant(
    "quantile/counts.py",
    "bins = self._guess(scores)\n        bins += scores > self._ends[bins]",
    "bins = self._guess(scores)\n        bins += scores >= self._ends[bins]",
    "a score at the end of a bin goes to the next",
    f"{COUNTS}::test_a_histogram_counts_like_a_naive_count",
)
mutant(
    "quantile/counts.py",
    "    bins += scores > self._ends[bins]\n            return",
    "    bins += scores >= self._ends[bins]\n            return",
    "a score at the end of a bin goes to the next, where thresholds crowd",
    f"{COUNTS}::test_thresholds_that_crowd_at_an_end_have_cells_of_their_own",
)
mutant(
    "quantile/counts.py",
    "self._guessing = thresholds.size > 1 and self._can_guess()",
    "self._guessing = thresholds.size > 1 and (self._can_guess() or self._rate > 0)",
    "bins are guessed where the guess is not proven",
    f"{COUNTS}::test_a_histogram_counts_like_a_naive_count",
)
mutant(
    "quantile/counts.py",
    "self._totals[0] += n_below",
    "self._totals[0] += 0",
    "scores below all thresholds are forgotten",
    f"{COUNTS}::test_a_histogram_counts_like_a_naive_count",
)

# ---- training: engine

ENGINE = "tests/training/test_dpsgd.py"
mutant(
    "training/descent.py",
    "noisy += noise[part.where]\n",
    "noisy += 0.98 * noise[part.where]\n",
    "gradient noise of .98 of its scale",
    f"{ENGINE}::test_each_step_adds_the_noise_of_the_event",
)
mutant(
    "training/descent.py",
    "part *= 1 / GRID",
    "part *= 0.98 / GRID",
    "gradient noise is drawn too small",
    f"{ENGINE}::test_each_step_adds_the_noise_of_the_event",
)
mutant(
    "training/dpsgd.py",
    "noise_multiplier=self.noise,",
    "noise_multiplier=0.98 * self.noise,",
    "the engine is handed less noise than the event says",
    f"{ENGINE}::test_each_step_adds_the_noise_of_the_event",
)
mutant(
    "training/dpsgd.py",
    "return self.mechanism.sampling_rate * self.n_records",
    "return self.mechanism.sampling_rate * len(self.records.rows)",
    "the true number of records divides",
    f"{ENGINE}::test_normaliser_is_public",
)
mutant(
    "training/dpsgd.py",
    "return self.sampling_rate, self.steps",
    "return self.sampling_rate, self.steps - 1",
    "the event leaves out a step",
    f"{ENGINE}::test_event_is_known_before_the_data",
)
mutant(
    "training/mechanism.py",
    "*self.releases, accountant=accountant)",
    "*self.releases)",
    "training noise ignores the accountant",
    f"{ENGINE}::test_calibrated_ends_within_the_budget",
    f"{SPIES}::test_every_public_choice_reaches_the_ledger",
)
mutant(
    "training/dpsgd.py",
    "everyone() if rate == 1 else poisson_batches(rng, self.places.count, rate)",
    "everyone() if rate >= 0.5 else poisson_batches(rng, self.places.count, rate)",
    "full batches where sampled ones are paid for",
    f"{ENGINE}::test_poisson_inclusion",
    f"{ENGINE}::test_batches_are_sampled_at_the_rate_of_the_event",
)
mutant(
    "training/gradients.py",
    "np.maximum(factors, self._lowered, out=factors)",
    "np.maximum(factors, 0.98 * self._lowered, out=factors)",
    "short gradients are stretched",
    f"{ENGINE}::test_clipped_sum_equals_per_sample_gradients",
)
mutant(
    "training/gradients.py",
    "self.limit / (1 + (widest + 4) * 2.0**-24) if",
    "self.limit if",
    "float32 norms lose what nobody charges",
    "tests/training/test_rounding.py::test_no_record_of_a_network_is_longer_than_the_clip_norm",
)
mutant(
    "training/gradients.py",
    "inputs *= v.factors_down\n",
    "inputs *= 1.0\n",
    "nothing is clipped where the factors go to the inputs",
    f"{ENGINE}::test_clipped_sum_equals_per_sample_gradients",
)
mutant(
    "training/networks.py",
    "limit, tiny = feature_bound * (1",
    "limit, tiny = 2 * feature_bound * (1",
    "rows may be twice as long as declared",
    f"{ENGINE}::test_feature_bound_is_enforced_in_training_and_prediction",
)
mutant(
    "training/descent.py",
    "if self.step_count > len(rule.learning_rates) - rule.averaged:",
    "if self.step_count >= len(rule.learning_rates) - rule.averaged:",
    "one iterate too many in the average",
    f"{ENGINE}::test_update_rules",
)
mutant(
    "training/dpsgd.py",
    "return DenseModel(self.network, self.loss, parameters, self.classes, self.mechanism.feature_bound)",
    "return DenseModel(self.network, self.loss, parameters, self.classes)",
    "prediction does not bound its rows",
    f"{ENGINE}::test_feature_bound_is_enforced_in_training_and_prediction",
)
mutant(
    "training/dpsgd.py",
    "influence += rounding",
    "influence += 0.0",
    "the stability bound forgets the grid",
    "tests/training/test_coupling.py::test_the_bound_holds_the_rounding_to_the_grid",
)
mutant(
    "training/dpsgd.py",
    "min(self.clip_norm, steepest) * (1 + CLIP_SLACK)",
    "min(self.clip_norm, steepest)",
    "the stability bound forgets the rounding of the sum",
    "tests/training/test_coupling.py::test_the_bound_holds_the_rounding_of_the_sum",
)
mutant(
    "training/dpsgd.py",
    "self.clip_norm < steepest * (1 - 1e-12)",
    "self.clip_norm < 0.5 * steepest",
    "a stability bound where clipping bends the loss",
    "tests/training/test_coupling.py::test_no_bound_is_claimed_outside_the_proof",
)

# ---- training: the bits of a row are its own

BITS, SUMS = "tests/training/test_same_bits.py", "tests/training/test_sums.py"
mutant(
    "training/networks.py",
    "size = self._blocks.size(m)",
    "size = m",
    "outputs are rounded by the number of rows",
    f"{BITS}::test_outputs_and_probabilities_of_a_row_are_its_own",
    f"{BITS}::test_one_more_record_changes_no_count_by_more_than_one",
)
mutant(
    "training/blocks.py",
    "self._sizes[m] = size if self._rounds_alike(size) else self.chunk",
    "self._sizes[m] = size",
    "a block that rounds by place is used",
    f"{BITS}::test_a_product_that_rounds_by_place_is_noticed",
)
mutant(
    "training/whitening.py",
    "scaled_rows(self._products[threads](rows), 1.0, unit=True)",
    "scaled_rows(rows @ self.matrix, 1.0, unit=True)",
    "a whitened row is rounded by the rows around it",
    f"{BITS}::test_a_transformed_row_is_its_own",
)
mutant(
    "training/influence.py",
    "target[part], gradient.block(m))",
    "target[part], m)",
    "a corrected output is rounded by the number of records",
    f"{BITS}::test_a_corrected_output_is_its_own",
)
mutant(
    "training/release.py",
    "_RECORDS_PER_PART = 1 << 10",
    "_RECORDS_PER_PART = 1 << 28",
    "the rounding of released sums grows with the records",
    f"{SUMS}::test_a_term_goes_through_few_additions",
)
mutant(
    "training/steps.py",
    "* self.bound * (1 + sum_slack(n_records))",
    "* self.bound",
    "the rounding of the sum of centred rows is not paid for",
    f"{SUMS}::test_the_noise_covers_the_sums_that_are_released",
)
mutant(
    "training/release.py",
    "return SUM_SLACK * max(1.0, n_records * _MORE_THAN_NOMINAL / _MOST_RECORDS)",
    "return SUM_SLACK",
    "the rounding of very long sums is not paid for",
    f"{SUMS}::test_more_nominal_records_get_more_noise_and_a_source_far_beyond_them_is_refused",
)
mutant(
    "training/summary.py",
    "return set_noise(self.noise_multiplier) * (1 + SUM_SLACK)",
    "return set_noise(self.noise_multiplier)",
    "the rounding of the Gram matrix is not paid for",
    f"{SUMS}::test_the_noise_covers_the_sums_that_are_released",
)
mutant(
    "training/targets.py",
    "np.clip(unit, -1.0, 1.0)",
    "np.asarray(unit)",
    "bounds that round badly lift the target's sensitivity",
    f"{SUMS}::test_bounds_far_from_zero_and_close_together_keep_the_sensitivity",
)

# ---- training: preprocessing, whitening, targets

STEPS, RELEASES = "tests/training/test_preprocess.py", "tests/training/test_releases.py"
mutant(
    "training/preprocess.py",
    "return compose(*known) if len(known) == len(parts) else None",
    "return known[-1] if len(known) == len(parts) else None",
    "preprocessing is free",
    f"{RELEASES}::test_every_private_part_is_in_the_event",
)
mutant(
    "training/steps.py",
    "mean = gaussian_release(total, noise, rng, n_records) / check_count",
    "mean = total / check_count",
    "centring with the exact mean",
    f"{RELEASES}::test_nothing_of_the_records_passes_a_step_but_through_its_release",
)
mutant(
    "training/steps.py",
    "mean, square = gaussian_release(total, noise, rng, n) / n\n",
    "mean, square = gaussian_release(total, noise, rng, n) / n\n        square = total[1] / n\n",
    "standardising with the exact scale",
    f"{RELEASES}::test_nothing_of_the_records_passes_a_step_but_through_its_release",
)
mutant(
    "training/steps.py",
    "return math.sqrt(1.25 * n_features)",
    "return math.sqrt(n_features)",
    "squares are left out of the sensitivity",
    f"{STEPS}::test_standardize_sensitivity_over_adversarial_records",
)
mutant(
    "training/preprocess.py",
    "transforms.append(_fitted(step, source, n, rng))",
    "transforms.append(_fitted(step, source, nominal_count(source, None)[0], rng))",
    "the true number of records divides the released sums",
    f"{RELEASES}::test_the_public_number_of_records_reaches_every_step",
)
mutant(
    "training/preprocess.py",
    "lambda z: compose(fixed, paid_event(tunable.with_noise(z))),",
    "lambda z: paid_event(tunable.with_noise(z)),",
    "the mechanism's noise forgets what the steps spend",
    f"{STEPS}::test_calibrated_meets_the_budget_and_nearly_uses_it",
)
mutant(
    "training/preprocess.py",
    "inner.stability if independent else None",
    "inner.stability",
    "a stability bound behind a step that looks at the records",
    f"{STEPS}::test_stability_survives_public_steps_only",
)
mutant(
    "training/preprocess.py",
    "source = source.map(methodcaller(",
    "source.map(methodcaller(",
    "training does not see the preprocessed rows",
    f"{RELEASES}::test_training_sees_what_prediction_sees",
)
mutant(
    "training/preprocess.py",
    "stream_seed(random_state, PREPROCESSING))",
    "random_state)",
    "steps and mechanism share a seeded stream",
    f"{STEPS}::test_steps_and_mechanism_do_not_share_a_seeded_stream",
)
mutant(
    "training/whitening.py",
    "noise, rng, n) / n\n",
    "noise, rng, n) / n\n        released[0] = self.moments(rows)[0] / n\n",
    "one moment of whitening is exact",
    f"{RELEASES}::test_nothing_of_the_records_passes_a_step_but_through_its_release",
)
mutant(
    "training/whitening.py",
    "scaled = scaled_rows(rows, self.bound, unit=False)\n",
    "scaled = np.array(rows, dtype=np.float64)\n",
    "long rows are not shortened before whitening",
    "tests/training/test_recipe.py::test_one_record_moves_the_second_moment_by_at_most_one",
)
mutant(
    "training/private_target.py",
    "return compose(gaussian_event(self.noise_multiplier), inner)",
    "return inner",
    "the release of the target's scale is in no event",
    f"{RELEASES}::test_every_private_part_is_in_the_event",
)
mutant(
    "training/private_target.py",
    "set_noise(self.noise_multiplier)), inner.event)",
    "set_noise(self.noise_multiplier)), paid_event(self.mechanism))",
    "a wrapper reports the plan and not what was spent",
    "tests/training/test_recipe.py::test_private_target_reports_what_its_mechanism_did_spend",
)
mutant(
    "training/private_target.py",
    "noise, rng, n) / n\n",
    "noise, rng, n) / n\n        square = source.sum(self._block_moments)[1] / n\n",
    "the target's scale is exact",
    f"{RELEASES}::test_nothing_of_the_records_passes_a_mechanism_but_through_its_release",
)
mutant(
    "training/private_target.py",
    "noise, rng, n) / n\n",
    "noise, rng, n) / n\n        mean = source.sum(self._block_moments)[0] / n\n",
    "the target's mean is exact",
    f"{RELEASES}::test_nothing_of_the_records_passes_a_mechanism_but_through_its_release",
)
mutant(
    "training/private_target.py",
    "noise = set_noise(self.noise_multiplier) * SENSITIVITY",
    "noise = set_noise(self.noise_multiplier)",
    "the target's noise forgets the sensitivity",
    "tests/training/test_recipe.py::test_target_noise_is_what_the_event_says",
)
mutant(
    "training/private_target.py",
    "if spent <= epsilon:\n            return found",
    "if spent <= 1.02 * epsilon:\n            return found",
    "the target's share may push training over its budget",
    "tests/training/test_recipe.py::test_private_target_stays_within_the_budget",
)
mutant(
    "training/scaling.py",
    "score_lipschitz=bound.score_lipschitz * half_width",
    "score_lipschitz=bound.score_lipschitz",
    "the stability bound forgets the units of the target",
    "tests/training/test_scaling.py::test_scores_move_as_much_more_as_the_target_is_wider",
)
mutant(
    "training/release.py",
    "rng.normal(0.0, noise_std, value.shape)",
    "rng.normal(0.0, 0.98 * noise_std, value.shape)",
    "released sums with .98 of their noise",
    f"{RELEASES}::test_the_scale_that_is_asked_for_reaches_the_generator",
)

# ---- training: perturbation, objective, statistics, influence

PERTURBED = "tests/training/test_perturbation.py"
mutant(
    "training/perturbation.py",
    "(risk.head.gradient_bound + 2 * tolerance) / risk.strength",
    "risk.head.gradient_bound / risk.strength",
    "output perturbation forgets the solver's tolerance",
    f"{RELEASES}::test_perturbation_pays_for_the_tolerance_of_its_solver",
)
mutant(
    "training/perturbation.py",
    "theta = gaussian_release(minimiser, noise, secure_generator(random_state))",
    "theta = gaussian_release(minimiser, 0.98 * noise, secure_generator(random_state))",
    "output perturbation with .98 of its noise",
    f"{RELEASES}::test_perturbation_pays_for_the_tolerance_of_its_solver",
)
mutant(
    "training/perturbation.py",
    "linear = rng.normal(0.0, set_noise",
    "linear = rng.normal(0.0, 0.98 * set_noise",
    "objective perturbation with .98 of its noise",
    f"{RELEASES}::test_objective_perturbation_draws_the_scales_of_its_event",
)
mutant(
    "training/perturbation.py",
    "gaussian_event(1 / math.hypot(mu, 1 / (TRACE_NOISE * noise)))",
    "gaussian_event(1 / mu)",
    "the trace of output noise is in no event",
    f"{RELEASES}::test_objective_perturbation_draws_the_scales_of_its_event",
)
mutant(
    "training/perturbation.py",
    "log_determinant = math.log1p(expansion)",
    "log_determinant = 0.0",
    "the Jacobian is free",
    f"{PERTURBED}::test_exact_divergences_stay_below_the_dominating_gaussian",
    f"{RELEASES}::test_the_jacobian_is_paid_for",
)
mutant(
    "training/perturbation.py",
    'one_sided = self.loss == "logistic" or (self.loss == "cross_entropy" and self._outputs == 2)',
    "one_sided = rank == 1",
    "a regression is accounted for like two classes",
    f"{RELEASES}::test_the_jacobian_is_paid_for",
)
mutant(
    "training/perturbation.py",
    "target, classes = bounded_targets(y, mechanism.y_bounds) - centre, None",
    "target, classes = np.asarray(y, dtype=float) - centre, None",
    "targets beyond their bounds",
    f"{PERTURBED}::test_rows_and_targets_are_clipped_in_training_and_prediction",
)
STATISTICS = "tests/training/test_summary.py"
mutant(
    "training/summary.py",
    "noisy_cross = gaussian_release(cross, self.cross_noise, rng)",
    "noisy_cross = np.array(cross)",
    "the cross moments are exact",
    f"{RELEASES}::test_nothing_of_the_records_passes_a_mechanism_but_through_its_release",
)
mutant(
    "training/summary.py",
    "noisy_gram = self._release_gram(gram, rng)",
    "noisy_gram = gram",
    "the Gram matrix is exact",
    f"{RELEASES}::test_nothing_of_the_records_passes_a_mechanism_but_through_its_release",
)
mutant(
    "training/summary.py",
    "self.row_bound * self.target_bound / math.sqrt(1 - self.gram_share)",
    "self.row_bound * self.target_bound",
    "the cross moments' share of the budget is spent twice",
    f"{STATISTICS}::test_one_record_moves_the_release_by_at_most_one_noise_multiplier",
)
mutant(
    "training/summary.py",
    "longest = n * self.row_bound",
    "longest = len(raw) * self.row_bound",
    "the true number of records bounds the cross moments",
    f"{RELEASES}::test_nothing_of_the_records_passes_a_mechanism_but_through_its_release",
)
INFLUENCE = "tests/training/test_influence.py"
mutant(
    "training/influence.py",
    "z + _own_pull(",
    "z - _own_pull(",
    "the correction points the wrong way",
    f"{INFLUENCE}::test_correction_points_where_exact_retraining_goes",
)
mutant(
    "training/influence.py",
    "weights.T * (trajectory.sampling_rate / trajectory.normaliser)",
    "weights.T / trajectory.normaliser",
    "the correction forgets the sampling",
    f"{INFLUENCE}::test_sampling_is_averaged",
)
mutant(
    "training/descent.py",
    "kept -= answer[t] * carried",
    "kept -= answer[t]",
    "the response forgets how hard a step pushed",
    "tests/training/test_dpsgd.py::test_influence_weights_are_the_derivative",
)
mutant(
    "training/influence.py",
    "(1.0, length**2 / head.n_features)",
    "(0.0, 0.0)",
    "the other records do not respond",
    f"{INFLUENCE}::test_the_response_of_the_others_takes_off_what_is_too_much",
)
mutant(
    "training/influence.py",
    "            X = step(X)\n",
    "            step(X)\n",
    "corrected on the rows before preprocessing",
    f"{INFLUENCE}::test_preprocessed_models_are_corrected_on_the_transformed_rows",
)

# ---- training: recipe

RECIPE = "tests/training/test_recipe.py"
mutant(
    "training/recipe.py",
    'signal = check_count("n_records", n_records) * gdp_mu(epsilon, delta)',
    'signal = check_count("n_records", n_records) * epsilon',
    "the held-out part ignores delta",
    f"{RECIPE}::test_the_rule_follows_every_one_of_its_arguments",
)
mutant(
    "training/recipe.py",
    'return DPSGD(loss="pinball", quantiles=self.quantiles, **constants)',
    'return DPSGD(loss="pinball", **constants)',
    "asked-for quantiles are replaced by the default ones",
    f"{RECIPE}::test_the_rule_follows_every_one_of_its_arguments",
)
mutant(
    "training/recipe.py",
    "return (PublicBounds(*self.bounds),)",
    "return (PublicBounds(-1.0, 1.0),)",
    "declared feature bounds are not used",
    f"{RECIPE}::test_the_rule_follows_every_one_of_its_arguments",
)
mutant(
    "training/recipe.py",
    "mechanism = PrivateTarget(mechanism, y_bounds)",
    "mechanism = PrivateTarget(mechanism)",
    "declared target bounds are not used",
    f"{RECIPE}::test_the_rule_follows_every_one_of_its_arguments",
)
mutant(
    "training/recipe.py",
    'n = max(1, round((1 - check_fraction("held_out_fraction", fraction)) * n))',
    'check_fraction("held_out_fraction", fraction)',
    "training is planned for all records although a part is held out",
    f"{RECIPE}::test_the_rule_follows_every_one_of_its_arguments",
)

# ---- scores, sets, metrics

mutant(
    "scores/functions.py",
    "return 1.0 - _probabilities(probabilities)",
    "return 1.0 - _probabilities(probabilities) ** 2",
    "labels are scored otherwise than records",
    "tests/test_scores.py",
)
mutant(
    "scores/functions.py",
    "mass = np.minimum(np.cumsum(ordered, axis=1), 1.0)",
    "mass = np.cumsum(ordered, axis=1)",
    "scores beyond their public range",
    "tests/test_scores.py::test_scores_stay_in_their_public_range",
)
mutant(
    "scores/functions.py",
    'order = np.argsort(-p, axis=1, kind="stable")',
    'order = p.shape[1] - 1 - np.argsort(-p[:, ::-1], axis=1, kind="stable")',
    "ties are ordered otherwise",
    "tests/test_scores.py::test_equal_probabilities_are_ordered_by_label",
)
mutant(
    "scores/functions.py",
    "np.asarray(lower, float) - y, y - np.asarray(upper, float)",
    "np.asarray(lower, float) - y, np.asarray(upper, float) - y",
    "a sign in the quantile score",
    "tests/test_scores.py::test_regression_scores_by_hand",
)
mutant(
    "sets.py",
    "within = scores[..., None] <= np.atleast_1d(levels)",
    "within = scores[..., None] < np.atleast_1d(levels)",
    "a label at the threshold is left out",
    "tests/test_sets.py::test_label_sets_agree_with_the_score",
)
mutant(
    "sets.py",
    "np.negative(_furthest(-low[rows, None], own), out=ends[rows, 0])",
    "ends[rows, 0] = low[rows, None] - own",
    "the lower end loses counted ties",
    "tests/test_sets.py::test_intervals_agree_with_the_score_to_the_last_bit",
)
mutant(
    "metrics.py",
    "(array[:, 0] <= truth) & (truth <= array[:, 1])",
    "(array[:, 0] <= truth) | (truth <= array[:, 1])",
    "every record is covered",
    "tests/test_metrics.py::test_intervals",
)
mutant(
    "metrics.py",
    "index = order[place]",
    "index = place",
    "labels in a declared order are looked up in sorted order",
    "tests/test_metrics.py::test_named_classes",
)

# ---- guarantees

mutant(
    "guarantees/formulas.py",
    "lambda inner: tradeoff(inner) >= wanted, 0.0",
    "lambda inner: tradeoff(inner) >= wanted - 1e-9, 0.0",
    "the inner level is rounded up",
    "tests/test_guarantees.py::TestFromPrivacyAlone::test_inner_level_is_the_last_that_keeps_the_promise",
)
mutant(
    "guarantees/formulas.py",
    'return 2 * check_nonnegative("score_lipschitz"',
    'return check_nonnegative("score_lipschitz"',
    "half of Result C's buffer",
    "tests/test_guarantees.py::TestResultA::test_value_buffer",
)
mutant(
    "guarantees/certificate.py",
    "certified and self.coverage >= self.target - 1e-12",
    "certified",
    "certified below its target",
    "tests/test_guarantees.py::TestCertificate::test_below_its_target",
)
mutant(
    "guarantees/formulas.py",
    "while law.cdf(size) <= tail:\n        size += 1",
    "size += 1",
    "a random part is taken to be larger than it is",
    "tests/test_guarantees.py::TestResultA::test_minimum_part_size_is_the_exact_binomial_quantile",
)

# ---- calibration

CALIBRATION = "tests/test_calibration.py"
mutant(
    "searches.py",
    '"calibration": compose(*self.events)',
    '"calibration": self.events[0]',
    "split, several levels: only the first is in the ledger",
    f"{SPIES}::test_a_split_ledger_holds_every_level",
)
mutant(
    "searches.py",
    '"calibration": compose(*self.events)',
    '"calibration": self.events[0]',
    "split, several levels: noise not divided and only the first in the ledger",
    f"{SPIES}::test_a_split_ledger_holds_every_level",
    also=(
        "searches = Searches(rule, asked, steps, noises, size_noise)",
        "noises = tuple(\n        sized_lattice_noise(budget.epsilon, budget.delta, steps, [s], before, accountant, "
        "rule.size_share)[0][0]\n        for s in sensitivities\n    )\n"
        "    searches = Searches(rule, asked, steps, noises, size_noise)",
    ),
)
mutant(
    "searches.py",
    "for event, note in zip(self.events, notes, strict=True):",
    "for event, note in zip(self.events[:1], notes[:1], strict=True):",
    "several levels: only the first is in the ledger",
    f"{CALIBRATION}::TestBudget::test_several_levels_and_groups_share_it",
)
mutant(
    "calibration.py",
    "child_seeds(seed, n_searches))",
    "[seed] * n_searches)",
    "all groups share one noise",
    f"{SPIES}::test_each_search_draws_its_own_noise",
)
mutant(
    "calibration.py",
    "random_state=next(seeds),",
    "random_state=7,",
    "every search has the same noise, whoever asks",
    f"{SPIES}::test_each_search_draws_its_own_noise",
)
mutant(
    "calibration.py",
    "count_noise=noise,\n                        steps",
    "count_noise=searches.noises[-1],\n                        steps",
    "every level is searched with the last one's noise",
    f"{SPIES}::test_each_level_has_the_noise_of_its_own_sensitivity",
)
mutant(
    "searches.py",
    "before = None if rule.guarantee.held_out and secret is None else spent",
    "before = None",
    "calibration forgets what training spent",
    f"{CALIBRATION}::TestBudget::test_parts_do_not_add_up_when_held_out",
)
mutant(
    "searches.py",
    "(grouped or part < 1 or not counted)",
    "(part < 1 or not counted)",
    "groups of unknown size are taken to be as large as planned",
    f"{SPIES}::test_groups_are_corrected_for_any_size",
)
mutant(
    "quantile/search.py",
    'check_probability("alpha", alpha) - size_tail(alpha)',
    'check_probability("alpha", alpha)',
    "the random size of a part is not charged",
    f"{CALIBRATION}::TestGuarantees::test_a_random_part_is_charged",
)
mutant(
    "calibration.py",
    "q.threshold + rule.shift if q.is_finite",
    "q.threshold if q.is_finite",
    "Result C's buffer is in the certificate and not in the threshold",
    f"{CALIBRATION}::TestGuarantees::test_stability_buffer",
)
mutant(
    "guarantees/stable.py",
    "else a - bound.delta_n for",
    "else a for",
    "the failure probability of stability is not charged",
    f"{CALIBRATION}::TestGuarantees::test_stability_buffer",
)
mutant(
    "calibration.py",
    "_certificate(rule, i, spent, by_level[i], extra_assumptions)",
    "_certificate(rule, i, spent, by_level[0], extra_assumptions)",
    "every certificate holds the first level's numbers",
    f"{SPIES}::test_each_certificate_holds_its_own_numbers",
)
mutant(
    "calibration.py",
    "        ledger = ledger.mark_seeded()\n",
    "        pass\n",
    "a seeded search looks private",
    f"{CALIBRATION}::TestBudget::test_with_the_default_accountant",
)
mutant(
    "guarantees/universal.py",
    'tradeoff_function("add")',
    'tradeoff_function("remove")',
    "the inner level is taken from the wrong direction",
    f"{SPIES}::test_the_inner_level_uses_the_direction_of_result_b",
)

# ---- strategy and estimators

CONFORMAL = "tests/test_conformal.py"
mutant(
    "records.py",
    "if ends and pairs and not np.array_equal(array, array.T):",
    "if False:",
    "square feature bounds are read as lows and highs without a word",
    "tests/test_people.py::test_square_feature_bounds",
)
mutant(
    "report/numbers.py",
    "return self.interval[1] < self.promised",
    "return self.interval[0] < self.promised - 1",
    "an evaluation far below the promise gets no verdict",
    "tests/test_people.py::test_an_evaluation_below_the_promise_is_a_red_verdict",
)
mutant(
    "cli/tables.py",
    "for path in () if force else paths:",
    "for path in ():",
    "a fit overwrites a model that was paid for",
    "tests/test_people.py::test_demo_and_fit_replace_nothing_unless_forced",
)
mutant(
    "release.py",
    "drawn if self.held_out else ~drawn)",
    "drawn if self.held_out else ~drawn | (np.arange(len(drawn)) % 50 == 0))",
    "two percent of the held-out rows are trained on",
    f"{SPIES}::test_the_two_parts_share_no_record",
)
mutant(
    "release.py",
    "return training, threshold",
    "return training, records",
    "all records are scored although a part was held out",
    f"{SPIES}::test_the_two_parts_share_no_record",
)
mutant(
    "searches.py",
    "if rule.guarantee.held_out and spent.entries and (notes or secret is not None):",
    "if spent.entries and notes:",
    "records used twice count once",
    f"{SPIES}::test_records_used_twice_count_twice",
)
mutant(
    "release.py",
    "score_range=request.task.score_range,",
    "score_range=(0.0, float(np.max(scores)) + 1e-9),",
    "the range of the scores comes from the records",
    f"{SPIES}::test_the_score_range_is_public",
)
mutant(
    "conformal/fitted.py",
    "np.vstack([self.threshold_, np.full((1, self.threshold_.shape[1]), np.inf)])",
    "np.asarray(self.threshold_)",
    "an unknown group gets the last one's threshold",
    f"{CONFORMAL}::TestGroups::test_an_unknown_group_gets_full_sets",
)
mutant(
    "release.py",
    "trained.stability if request.task.natural_score else None",
    "trained.stability",
    "a stability bound for a score without a constant",
    f"{CONFORMAL}::TestGuarantees::test_stability_needs_the_score_with_the_known_constant",
)
mutant(
    "release.py",
    "seeded=random_state is not None)",
    "seeded=False)",
    "a seeded fit that never searches looks private",
    f"{SPIES}::test_a_seeded_fit_that_never_searches_is_still_marked",
    harmless="the searches mark their ledger as well, whether they asked anything or not",
)
mutant(
    "conformal/base.py",
    "budget=Budget(self.epsilon, self.delta),",
    "budget=Budget(self.epsilon, 1e-5),",
    "the estimator's delta is ignored",
    f"{SPIES}::test_every_public_choice_reaches_the_ledger",
)
mutant(
    "conformal/base.py",
    "accountant=self.accountant,",
    'accountant="rdp",',
    "the estimator's accountant is ignored",
    f"{SPIES}::test_every_public_choice_reaches_the_ledger",
)
mutant(
    "conformal/base.py",
    "calibration_fraction=self.calibration_fraction,",
    'calibration_fraction="auto",',
    "the estimator's calibration_fraction is ignored",
    f"{SPIES}::test_every_public_choice_reaches_the_ledger",
)
mutant(
    "conformal/base.py",
    "train_share=self.train_share,",
    "train_share=0.5,",
    "the estimator's train_share is ignored",
    f"{SPIES}::test_every_public_choice_reaches_the_ledger",
)
mutant(
    "conformal/base.py",
    "feature_bounds=bounds if isinstance(bounds, str) else column_bounds(bounds, taken.width, names),",
    "feature_bounds=(taken.records.source.blocks[0].read().min(axis=0) - 1e-9, "
    "taken.records.source.blocks[0].read().max(axis=0) + 1e-9),",
    "the estimator takes its feature bounds from the records",
    f"{SPIES}::test_every_public_choice_reaches_the_ledger",
)
mutant(
    "release.py",
    "reservation.commit(ledger)",
    "reservation.commit(Ledger())",
    "a fit commits nothing",
    "tests/test_budget.py::test_fit_reserves_exactly_what_it_commits",
)
mutant(
    "release.py",
    "store.reserve(planned.ledger(strategy.spent), note=note)",
    "store.reserve(strategy.spent, note=note)",
    "a fit reserves its training only",
    "tests/test_budget.py::test_fit_reserves_exactly_what_it_commits",
)
mutant(
    "release.py",
    "= child_seeds(random_state, 3)",
    "= (random_state,) * 3",
    "training, split and search share a seed",
    f"{SPIES}::test_training_assignment_and_search_are_seeded_apart",
)
mutant(
    "tasks.py",
    "return np.asarray(np.maximum(scores, self._of_own_label(softmax(outputs), targets)))",
    "return scores",
    "the correction is computed and not used",
    f"{SPIES}::test_corrected_scores_are_the_ones_that_count",
)
mutant(
    "tasks.py",
    "if tuple(model.classes or ()) != expected:",
    "if len(model.classes or ()) != len(expected):",
    "a foreign model's order of labels is not looked at",
    f"{CONFORMAL}::TestPrivateModel::test_its_order_of_labels_is_taken_over",
)
mutant(
    "tasks.py",
    "return targets if self.private_range else np.asarray(np.clip(targets, *self.y_bounds))",
    "return np.asarray(targets)",
    "targets beyond their bounds reach the mechanism",
    f"{SPIES}::test_a_mechanism_sees_clipped_targets_and_the_public_number_of_records",
)
mutant(
    "scores/intervals.py",
    "np.clip(inside, low, high, out=inside)",
    "np.asarray(inside)",
    "predictions leave the declared range",
    f"{SPIES}::test_predictions_stay_in_the_declared_range_and_thresholds_are_fine_where_scores_crowd",
)
mutant(
    "tasks.py",
    "return np.asarray(np.maximum(scores, self._of_targets(targets, outputs)))",
    "return scores",
    "the correction of a regression is computed and not used",
    f"{SPIES}::test_corrected_residuals_are_the_ones_that_count",
)
mutant(
    "strategy.py",
    "random_state=random_state, n_records=self.n_training)",
    "random_state=random_state, n_records=None)",
    "training divides by the true number of records",
    f"{SPIES}::test_a_mechanism_sees_clipped_targets_and_the_public_number_of_records",
)
mutant(
    "strategy.py",
    "return ledger.then(self.model.ledger)",
    "return ledger",
    "a foreign model is free",
    f"{CONFORMAL}::TestPrivateModel::test_on_its_own_records",
)
mutant(
    "strategy.py",
    "ledger = ledger.add(stage, event, str(note))",
    "str(note)",
    "training is free",
    f"{SPIES}::test_records_used_twice_count_twice",
)
mutant(
    "strategy.py",
    "mechanism.calibrated(share * epsilon, delta",
    "mechanism.calibrated(epsilon, delta",
    "training gets the whole budget",
    f"{SPIES}::test_every_public_choice_reaches_the_ledger",
)
mutant(
    "guarantees/asymptotic.py",
    "certified=False,",
    "certified=False,\n    held_out=True,",
    "an unproven guarantee is accounted for as if records were held out",
    f"{SPIES}::test_records_used_twice_count_twice",
)
mutant(
    "strategy.py",
    "return Preprocessed((PublicBounds(*request.feature_bounds),), mechanism)",
    "return mechanism",
    "declared feature bounds do not reach an own mechanism",
    f"{SPIES}::test_declared_bounds_reach_an_own_mechanism",
)
mutant(
    "strategy.py",
    "return Preprocessed((NormClip(request.feature_bound),), mechanism)",
    "return mechanism",
    "a declared row bound does not reach an own mechanism",
    f"{SPIES}::test_declared_bounds_reach_an_own_mechanism",
)
mutant(
    "strategy.py",
    "y_bounds=request.task.y_bounds,",
    "y_bounds=None,",
    "declared target bounds do not reach the recipe",
    f"{SPIES}::test_the_ledger_of_a_recipe_holds_all_its_releases",
)

# ---- counts that serve several levels, and the quantile of the rivals

mutant(
    "quantile/search.py",
    "steps - place.bit_length()",
    "steps - 2 * place.bit_length()",
    "fewer counts are paid for than several levels may ask for",
    "tests/quantile/test_search.py::TestSharedCounts::test_no_more_counts_are_released_than_were_paid_for",
)
mutant(
    "quantile/exponential.py",
    "costs.astype(object) * whole_rate",
    "costs.astype(object) * 2 * whole_rate",
    "the exponential mechanism draws at twice its rate",
    "tests/quantile/test_exponential.py::test_ends_are_drawn_by_their_distance_from_the_quantile",
)

# ---- baselines

BASELINES = "tests/test_baselines.py"
mutant(
    "baselines/threshold.py",
    "[1.0] * levels,",
    "[1.0],",
    "several levels of DP-Split, noise for one",
    f"{BASELINES}::test_dp_split_spends_the_budget_once_for_each_half",
    f"{BASELINES}::test_dp_split_noise_is_the_papers",
)
mutant(
    "baselines/threshold.py",
    '"calibration": compose(*(q.event for q in quantiles))',
    '"calibration": quantiles[0].event',
    "several levels of DP-Split, one in the ledger",
    f"{BASELINES}::test_dp_split_ledger_holds_every_level",
)
mutant(
    "baselines/threshold.py",
    "self._scores(self._predictor, rows[calibrates], y[calibrates])",
    "self._scores(self._predictor, rows, y)",
    "DP-Split scores the training half as well",
    f"{BASELINES}::test_dp_split_scores_only_the_half_that_training_did_not_see",
)
mutant(
    "baselines/threshold.py",
    "ledger if seed is None else ledger.mark_seeded()",
    "ledger",
    "a seeded DP-Split looks private",
    f"{BASELINES}::test_dp_split_seeds",
)
mutant(
    "baselines/threshold.py",
    "random_state=seeds[1], n_records=n_training)",
    "random_state=seeds[1], n_records=int(trains.sum()))",
    "DP-Split divides by the true size of its half",
    f"{BASELINES}::test_dp_split_trains_and_calibrates_on_disjoint_halves",
)
mutant(
    "baselines/cross.py",
    "model = Predictor.train(self.estimator, rows[~out], y[~out], self._seed())",
    "model = Predictor.train(self.estimator, rows, y, self._seed())",
    "CV+ scores records its model has seen",
    f"{BASELINES}::test_cv_plus_follows_its_definition",
)
mutant(
    "baselines/full.py",
    "np.count_nonzero(scores[:-1] < scores[-1])",
    "np.count_nonzero(scores[:-1] <= scores[-1])",
    "full conformal treats ties as misses",
    f"{BASELINES}::test_full_classification_keeps_labels_that_tie",
)
mutant(
    "baselines/base.py",
    "ledger = ledger.add(stage, non_private_event(), note)",
    "pass",
    "a baseline without privacy has an empty ledger",
    f"{BASELINES}::test_shapes_names_and_ledger_of_the_non_private_baselines",
)

# ---- planning

PLANNING = "tests/test_planning.py"
mutant(
    "planning.py",
    "mu_left = math.sqrt(mu**2 - mu_train**2)",
    "mu_left = mu",
    "a plan forgets what training spends",
    f"{PLANNING}::test_the_plan_is_what_the_fit_does",
)
mutant(
    "planning.py",
    "offset += noise * mean_rise(steps)",
    "offset += 0.0",
    "a plan forgets the correction",
    f"{PLANNING}::test_the_plan_is_what_the_fit_does",
)
mutant(
    "planning.py",
    "part=fraction or 1.0, stability=stability,",
    "stability=stability,",
    "a plan of split forgets that a part is held out",
    f"{PLANNING}::test_the_plan_is_what_the_fit_does",
)

# ---- audit

AUDIT = "tests/test_audit.py"
mutant(
    "audit/bounds.py",
    "[w @ weights for w in first], [w @ weights for w in second]",
    "[w @ weights for w in first], [w @ weights for w in first]",
    "the bound is tested on the half that chose its threshold",
    f"{AUDIT}::test_the_half_that_chose_a_threshold_proves_nothing",
)
mutant(
    "audit/bounds.py",
    "failure = (1 - confidence) / (4 * len(deltas))",
    "failure = 1 - confidence",
    "the bound without its correction for many comparisons",
    f"{AUDIT}::test_the_bound_is_the_two_clopper_pearson_rates_at_their_share_of_the_confidence",
)
mutant(
    "audit/bounds.py",
    "stats.beta.ppf(failure, np.maximum(hits, 1), len(more) - hits + 1)",
    "hits / len(more)",
    "the rate of hits is taken at its word",
    f"{AUDIT}::test_the_bound_is_the_two_clopper_pearson_rates_at_their_share_of_the_confidence",
)
mutant(
    "audit/play.py",
    "other = chosen.play(not null, runs)[:runs]",
    "other = chosen.play(False, runs)[:runs]",
    "both worlds of an audit are the same",
    f"{AUDIT}::test_catches_clipping_switched_off",
)
mutant(
    "audit/play.py",
    "claimed=tuple(epsilon_of(claim, d) for d in deltas),",
    "claimed=tuple(epsilon_of(claim, deltas[0]) for d in deltas),",
    "every claim is the first delta's",
    f"{AUDIT}::test_each_delta_has_its_own_claim",
)
mutant(
    "release.py",
    "training_seed, observer)",
    "training_seed)",
    "an audit of a release hears nothing of training",
    f"{AUDIT}::test_a_release_tells_of_training_and_search",
)
mutant(
    "calibration.py",
    "random_state=next(seeds),\n                        observer=observer,",
    "random_state=next(seeds),",
    "an audit of a release hears nothing of the search",
    f"{AUDIT}::test_a_release_tells_of_training_and_search",
)
mutant(
    "training/descent.py",
    "StepView(self.current(), self._noisy * self.normaliser, constants)",
    "StepView(self.current(), total, constants)",
    "an audit of training hears the sum before its noise",
    f"{AUDIT}::test_training_tells_the_sums_that_made_its_parameters",
)
mutant(
    "quantile/search.py",
    "asked.noise(step, left, right, noise) - bar",
    "asked.noise(step, left, right, noise) // 2 - bar",
    "counts get half their noise",
    f"{AUDIT}::test_audit_reaches_its_share_of_the_claim_and_never_exceeds_it[search-quick]",
)

# ---- report

REPORT = "tests/report/test_report.py"
mutant(
    "report/numbers.py",
    "share, interval = hits[place] / n",
    "share, interval = hits[0] / n",
    "every level prints the first level's coverage",
    f"{REPORT}::test_every_level_is_evaluated_on_its_own_sets",
)
mutant(
    "report/numbers.py",
    "_set_sizes(sizes[:, place], len(classes))",
    "_set_sizes(sizes[:, 0], len(classes))",
    "every level prints the first level's sizes",
    f"{REPORT}::test_every_level_is_evaluated_on_its_own_sets",
)
mutant(
    "report/template.html",
    "% place, level.coverage,",
    "% place, evaluation.levels[0].coverage,",
    "the page prints the first level's coverage everywhere",
    f"{REPORT}::test_every_number_is_the_fitted_objects",
)
mutant(
    "report/page.py",
    "for level, t in zip(levels, row, strict=True)",
    "for level, t in zip(levels, estimator.threshold_[0], strict=True)",
    "every group prints the first group's threshold",
    f"{REPORT}::test_every_number_is_the_fitted_objects",
)
mutant(
    "report/numbers.py",
    "tracks = [(*track, item) for item in spent for track in tracks]",
    "tracks = [(*track, spent[0]) for track in tracks]",
    "the page shows one of two disjoint parts",
    f"{REPORT}::test_tracks_of_a_sequential_and_of_a_parallel_ledger",
)
mutant(
    "report/numbers.py",
    "tail = (1 - confidence) / 2",
    "tail = 1 - confidence",
    "the interval of the held-out coverage is too narrow",
    f"{REPORT}::test_every_level_is_evaluated_on_its_own_sets",
)

# ---- schema, records, persistence

mutant(
    "schema.py",
    "return categories[1:] if len(categories) == 2 and",
    "return categories[1:] if",
    "a category of three is lost",
    "tests/test_schema.py::test_matrix_follows_the_declarations",
)
mutant(
    "schema.py",
    "numbers = np.clip(numbers, *self.bounds)",
    "numbers = np.asarray(numbers)",
    "values beyond the declared bounds",
    "tests/test_schema.py::test_matrix_follows_the_declarations",
)
mutant(
    "schema.py",
    "numbers[odd | absent] = self.bounds[0] / 2 + self.bounds[1] / 2",
    "numbers[odd | absent] = np.nanmean(numbers)",
    "missing numbers are filled with the mean of the records",
    "tests/test_schema.py::test_matrix_follows_the_declarations",
)
mutant(
    "schema.py",
    "return (self.bounds, (0.0, 1.0))[: len(self.features)]",
    "return (self.bounds, self.bounds)[: len(self.features)]",
    "an indicator gets the bounds of its column",
    "tests/test_schema.py::test_matrix_follows_the_declarations",
)
mutant(
    "records.py",
    "index[values == value] = place",
    "index[values == value] = 0",
    "every record is in the first group",
    "tests/test_records.py::TestGroups::test_places_and_unknown_groups",
)
mutant(
    "records.py",
    "np.full(size, -1, dtype=np.int64)",
    "np.zeros(size, dtype=np.int64)",
    "an unknown group is the first one",
    "tests/test_records.py::TestGroups::test_places_and_unknown_groups",
)
mutant(
    "records.py",
    "places = {label: place for place, label in enumerate(classes)}",
    "places = {label: place for place, label in enumerate(sorted(classes, key=str))}",
    "labels in a declared order are mixed up",
    "tests/test_records.py::TestClassList::test_declared_order_is_kept",
)
mutant(
    "persistence.py",
    "if hashlib.sha256(data).hexdigest() != digest:",
    "if len(digest) != 64:",
    "an altered array is read",
    "tests/test_persistence.py::TestDamage::test_exchanged_arrays",
)
mutant(
    "persistence.py",
    "os.replace(temporary, target)",
    "open(target, 'wb').write(open(temporary, 'rb').read())",
    "a file is overwritten in place",
    "tests/test_persistence.py::TestWriting::test_a_write_that_breaks_off_leaves_the_old_file",
    "tests/test_persistence.py::TestWriting::test_exactly_the_path_and_nothing_beside_it",
)
mutant(
    "conformal/fitted.py",
    '"certificates": [c.to_dict() for c in self.certificates_],',
    '"certificates": [self.certificates_[0].to_dict() for c in self.certificates_],',
    "a saved file repeats the first level's certificate",
    "tests/test_persistence.py::TestReturn::test_classifier",
)

# ---- budget store

STORE = "tests/test_budget.py"
mutant(
    "budget.py",
    'if [line.kind for line in known] != ["reserve"]:',
    'if "commit" in [line.kind for line in known]:',
    "a commit without a reservation",
    f"{STORE}::test_a_commit_needs_its_reservation",
)
mutant(
    "privacy/account.py",
    "for line in self.lines[1:]:\n            shares",
    "for line in (x for x in self.lines[1:] if x.kind == 'commit'):\n            shares",
    "reservations do not count until they are committed",
    f"{STORE}::test_reservation_without_commit_stays_spent",
)
mutant(
    "budget.py",
    'account.require(account.ledger().then(share), "the share does not fit")',
    'account.require(share, "the share does not fit")',
    "each share is held against the whole budget",
    f"{STORE}::test_too_large_a_share_is_refused_and_changes_nothing",
)
mutant(
    "budget.py",
    'connection.execute("BEGIN IMMEDIATE")',
    'connection.execute("BEGIN")',
    "two processes read before either writes",
    f"{STORE}::test_the_lock_is_taken_before_anything_is_read",
)
mutant(
    "privacy/account.py",
    "if not spent <= self.budget.epsilon:",
    "if spent > 1.01 * self.budget.epsilon:",
    "a store may be overspent by a hundredth",
    f"{STORE}::test_a_store_is_never_overspent_by_a_hair",
    f"{STORE}::test_processes_together_never_overspend",
)
mutant(
    "budget.py",
    "return Ledger(event.entries)",
    "return Ledger(event.entries[:1])",
    "only the first entry of a fit is written down",
    f"{STORE}::test_a_fit_spends_from_the_store_what_its_ledger_says",
)
mutant(
    "privacy/account.py",
    "or line.digest != line.expected_digest(previous):",
    "or not line.digest:",
    "digests are not checked",
    f"{STORE}::test_a_line_changed_behind_its_back_is_noticed",
)
mutant(
    "budget.py",
    "account.ledger(without=reservation.identity).then(share)",
    "share",
    "a commit is held against the whole budget",
    f"{STORE}::test_a_commit_counts_what_others_have_spent",
)

# ---- command line

CLI, OPTIONS = "tests/test_cli.py", "tests/test_cli_options.py"
FITTED = f"{OPTIONS}::test_every_option_of_fit_reaches_the_estimator"
FRAMES = "tests/test_frames.py"
mutant(
    "schema.py",
    '"feature_bounds": self.feature_bounds,',
    '"feature_bounds": None,',
    "a schema's feature bounds are not used",
    FITTED,
)
mutant(
    "schema.py",
    '"n_records": self.n_records,\n            "rows',
    '"n_records": None,\n            "rows',
    "the declared number of records is not used, so the records are counted",
    FITTED,
)
mutant(
    "schema.py",
    '"classes": None if self.classes is None else list(self.classes),',
    '"classes": None if self.classes is None else sorted(self.classes),',
    "the labels are not in the order of the schema",
    FITTED,
)
mutant(
    "schema.py",
    "shown.argmax(axis=1) + hidden, hidden - 1)",
    "shown.argmax(axis=1) + hidden, 0)",
    "an unknown group gets the threshold of the first one",
    f"{FRAMES}::test_a_column_gives_the_groups",
)
mutant(
    "conformal/base.py",
    "return schema.matrix(X), schema.targets(X), schema.persons(X)",
    "return schema.matrix(X), schema.targets(X), persons",
    "the column of persons is not used",
    f"{FRAMES}::test_persons_come_from_the_schema",
)
mutant(
    "cli/commands.py",
    "delta=given.delta,\n        confidence_level",
    "delta=max(given.delta, 1e-5),\n        confidence_level",
    "fit --delta below 1e-5 is ignored",
    FITTED,
)
mutant(
    "cli/commands.py",
    "epsilon=given.epsilon,\n        delta=given.delta,\n        confidence_level",
    "epsilon=max(given.epsilon, 1.0),\n        delta=given.delta,\n        confidence_level",
    "fit --epsilon below 1 is ignored",
    FITTED,
)
mutant("cli/commands.py", "guarantee=given.guarantee,", 'guarantee="auto",', "fit --guarantee is ignored", FITTED)
mutant(
    "cli/commands.py",
    "random_state=given.seed,",
    "random_state=0,",
    "fit is seeded although no seed was given",
    f"{OPTIONS}::test_without_a_seed_a_fit_is_private",
)
mutant(
    "cli/commands.py",
    "budget=store,\n",
    "budget=None,\n",
    "fit --budget is opened and not spent from",
    f"{CLI}::test_budget_store_is_spent",
)
mutant(
    "cli/commands.py",
    "levels = given.confidence if len(given.confidence) > 1 else given.confidence[0]",
    "levels = given.confidence[0]",
    "fit --confidence keeps the first level",
    FITTED,
)
mutant(
    "cli/commands.py",
    "delta=given.delta,\n        alpha=round",
    "alpha=round",
    "plan --delta is ignored",
    f"{OPTIONS}::test_every_option_of_plan_changes_the_plan",
)
mutant(
    "cli/commands.py",
    "n_features=given.features,",
    "",
    "plan --features is ignored",
    f"{OPTIONS}::test_every_option_of_plan_changes_the_plan",
)
mutant(
    "cli/commands.py",
    "knowledge=given.knowledge, runs=given.runs, null=given.null)",
    "runs=given.runs)",
    "audit --knowledge and --null are ignored",
    f"{OPTIONS}::test_every_option_of_audit_reaches_the_game",
)
mutant(
    "cli/commands.py",
    "epsilon=given.epsilon, delta=given.delta, level=given.confidence, force=given.force)",
    "epsilon=given.epsilon)",
    "demo --delta and --confidence are ignored",
    f"{OPTIONS}::test_every_option_of_demo_reaches_the_fit",
)
mutant(
    "cli/commands.py",
    'level = told["evaluation"]["levels"][place]',
    'level = told["evaluation"]["levels"][0]',
    "every printed level has the first one's coverage",
    f"{OPTIONS}::test_each_printed_level_has_its_own_numbers",
)
mutant(
    "cli/commands.py",
    "BudgetStore.create(given.store, given.epsilon, given.delta",
    "BudgetStore.create(given.store, given.epsilon, 1e-5",
    "budget create --delta is ignored",
    f"{OPTIONS}::test_a_new_store_has_the_budget_that_was_asked_for",
)
mutant(
    "cli/tables.py",
    "separator=self.separator",
    "separator=separator_of(self.path)",
    "--separator is used for the header only",
    f"{OPTIONS}::test_the_separator_is_used_for_header_and_records",
)
mutant(
    "cli/fits.py",
    'found[f"set_size{mark}"] = sets[:, :, place].sum(axis=1)',
    'found[f"set_size{mark}"] = sets[:, :, 0].sum(axis=1)',
    "every level's size is the first one's",
    f"{OPTIONS}::test_predicted_columns_are_those_of_their_level",
)

mutant(
    "cli/fits.py",
    "> _IN_MEMORY:",
    "> 2**62:",
    "a table larger than memory is read into memory",
    f"{CLI}::test_a_large_table_stays_in_its_file",
)
mutant(
    "sources/files.py",
    "if _state(file) != self._written[file]:",
    "if not file.exists():",
    "two readings of a file may hold different records",
    "tests/sources/test_elsewhere.py::test_a_file_that_changes_is_refused",
)

# ---- torch

TORCH = "tests/training/test_opacus.py"
mutant(
    "training/opacus.py",
    "noise = set_noise(self.noise_multiplier) * (1",
    "noise = 0.95 * set_noise(self.noise_multiplier) * (1",
    "torch noise is a twentieth too small",
    f"{TORCH}::test_the_noise_of_the_event_reaches_every_sum",
)
mutant(
    "training/device.py",
    "torch.add(self._noise, self.sums.total, alpha=1 / self.grid, out=gradient).round_()",
    "torch.mul(self.sums.total, 1 / self.grid, out=gradient).round_()",
    "a step on a device adds no noise",
    "tests/training/test_device.py::test_noise_of_a_step_is_that_of_the_event",
)
mutant(
    "training/device.py",
    "self._noise.copy_(noise)",
    "self._noise.copy_(noise) if not self.step_count else None",
    "a device adds the same noise at every step",
    "tests/training/test_device.py::test_noise_of_a_step_is_that_of_the_event",
)
mutant(
    "training/device.py",
    "(self._limit / norms.clamp(min=self._limit) * block.weights)",
    "(self._limit / norms.clamp(min=0.5 * self._limit) * block.weights)",
    "a device clips at twice the norm",
    "tests/training/test_device.py::test_without_noise_it_is_the_run_of_the_processor",
)
mutant(
    "training/device.py",
    "weights.where(places < count, 0))",
    "weights)",
    "padding on a device counts",
    "tests/training/test_device.py::test_without_noise_it_is_the_run_of_the_processor",
)
mutant(
    "training/device.py",
    "values if values is block.rows else values.where(counted, 0)",
    "values",
    "an overflow on a device spoils the sum",
    "tests/training/test_device.py::test_one_record_moves_the_sum_by_at_most_its_clip_norm",
)
mutant(
    "training/device.py",
    "upload.next[size:] = 0",
    "pass",
    "records of the last visit to a device count as padding",
    "tests/training/test_device.py::test_a_visit_adds_up_to_the_same_bits_as_records_that_live_there",
)
mutant(
    "cli/commands.py",
    "device=given.device,",
    "device=None,",
    "the command line trains on the processor",
    "tests/test_cli_options.py::test_the_device_is_that_of_the_option",
)
mutant(
    "sources/persons.py",
    "slice(sender * count + place, None, senders * count)",
    "slice(sender * count + place, None, senders * count + 1)",
    "rows of a person miss the block of their person",
    "tests/sources/test_person_blocks.py::test_senders_who_deal_in_turns_make_the_blocks_of_one_table",
)
mutant(
    "conformal/reading.py",
    "and not source.by_person:",
    "and False:",
    "a person whose rows lie in two processes counts as two",
    "tests/sources/test_distributed.py::test_persons_are_known_by_the_source",
)
mutant(
    "conformal/base.py",
    "persons = True  # its blocks hold them",
    "persons = None",
    "ids that a process group was given are forgotten",
    "tests/sources/test_distributed.py::test_persons_are_known_by_the_source",
)
mutant(
    "training/device_noise.py",
    "os.urandom(32)",
    "bytes(32)",
    "the noise of a device is the same in every run",
    "tests/training/test_device.py::test_seeds_repeat_and_the_systems_entropy_does_not",
)
mutant(
    "training/device_noise.py",
    "self._next += blocks",
    "pass",
    "the noise of a device repeats itself",
    "tests/training/test_device.py::test_noise_is_standard_normal_and_never_repeats",
)
mutant(
    "strategy.py",
    'device=request.device or "cpu")',
    'device="cpu")',
    "a torch module stays on the processor whatever device was asked for",
    "tests/training/test_device.py::test_a_torch_module_goes_there_too_and_other_mechanisms_say_it_themselves",
)
mutant(
    "training/torch_modules.py",
    "parameter.grad = parameter.grad_sample = None",
    "parameter.grad = None",
    "the gradients of a batch's records outlive it",
    f"{TORCH}::test_gradients_of_records_go_with_their_batch_and_the_engine_with_the_last_step",
)
mutant(
    "training/feeding.py",
    "            kept = not last\n",
    "            kept = True\n",
    "a thread keeps the memory of a run that is over",
    f"{TORCH}::test_gradients_of_records_go_with_their_batch_and_the_engine_with_the_last_step",
    "tests/training/test_device.py::test_the_memory_of_sums_over_blocks_goes_with_the_last_step",
)
mutant(
    "training/feeding.py",
    "parameters, shares, last, self._leader)",
    "parameters, shares, False, self._leader)",
    "workers keep rows of the last batch",
    "tests/training/test_device.py::test_the_memory_of_sums_over_blocks_goes_with_the_last_step",
)
mutant(
    "training/torch_modules.py",
    "        if not out_of_memory(error):\n            raise\n",
    "        raise\n",
    "where there is no room torch tells the size of a batch",
    f"{TORCH}::test_where_there_is_no_room_nothing_of_a_batch_is_told_or_kept",
    "tests/training/test_device.py::test_where_the_device_has_no_room_nothing_is_counted",
)
mutant(
    "training/opacus.py",
    "[torch.from_numpy(gaussian_release(total.numpy(), noise, rng)) for total in sums]",
    "[torch.from_numpy(gaussian_release(t.numpy(), noise, rng)) if t.ndim > 1 else t for t in sums]",
    "torch biases get no noise",
    f"{TORCH}::test_the_noise_of_the_event_reaches_every_sum",
)
mutant(
    "training/opacus.py",
    "ready, self.sampling_rate * n, rng, random_state)",
    "ready, self.sampling_rate * source.sum(len), rng, random_state)",
    "torch divides by the true number of records",
    f"{TORCH}::test_every_record_is_clipped_and_the_normaliser_is_public",
)
mutant(
    "training/mechanism.py",
    "*self.releases) if self.noise_multiplier else non_private_event()",
    "*self.releases)",
    "torch without noise is not called non-private",
    f"{TORCH}::test_same_updates_as_the_numpy_engine",
)
mutant(
    "training/opacus.py",
    "length = torch.linalg.vector_norm(torch.stack(",
    "length = torch.amax(torch.stack(",
    "torch clips each layer on its own",
    f"{TORCH}::test_one_record_moves_the_sum_of_all_layers_by_at_most_the_clip_norm",
)
mutant(
    "training/opacus.py",
    "return self.sampling_rate, self.steps",
    "return self.sampling_rate, 1",
    "torch training costs one step",
    f"{TORCH}::test_the_noise_of_the_event_reaches_every_sum",
)
mutant(
    "training/opacus.py",
    "if self.sampling_rate == 1:\n",
    "if self.sampling_rate >= 0.2:\n",
    "torch trains on everybody and pays for samples",
    f"{TORCH}::test_batches_are_sampled_at_the_rate_of_the_event",
)
mutant(
    "training/opacus.py",
    "for noise, rate, steps in history:",
    "for noise, rate, steps in history[:1]:",
    "an Opacus ledger keeps its first stretch only",
    f"{TORCH}::test_every_stretch_of_an_opacus_history_is_in_the_ledger",
)

# ---- what one release covers

RELEASE, PROMISE = "tests/quantile/test_release_level.py", "tests/test_release_confidence.py"
mutant(
    "quantile/release_level.py",
    "return max(self._bounds(level, offset, range(self._count)))",
    "return self._bounds(level, offset, range(self._count))[0]",
    "a released size is bounded at its low end, where the offset that is needed is the smallest",
    f"{RELEASE}::test_noisy_size_is_at_least_every_possible_size",
    f"{RELEASE}::test_the_low_end_of_the_size_is_not_the_worst",
)
mutant(
    "quantile/release_level.py",
    "needed = offset - self.unit - self.alpha * (self.sizes.width - 1)",
    "needed = offset + self.alpha * (self.sizes.width - 1)",
    "a block of sizes is bounded from the wrong side",
    f"{RELEASE}::test_blocks_of_a_large_part_cost_little",
)
mutant(
    "quantile/release_level.py",
    "return swing * self.size_noise, swing * self.size_unit",
    "return 0.0, swing * self.size_unit",
    "the noise of the released size is left out of what one release covers",
    f"{RELEASE}::test_noisy_size_is_at_least_every_possible_size",
)
mutant(
    "quantile/release_level.py",
    "sum(count * special.log_ndtr(t + rise)",
    "sum(special.log_ndtr(t + rise)",
    "what one release covers is bounded with one noise instead of the largest",
    f"{RELEASE}::test_bound_is_the_average_over_order_statistics",
)
mutant(
    "quantile/search.py",
    "offset = max(offset, alone)",
    "offset = min(offset, alone)",
    "release_confidence lowers the aim",
    f"{PROMISE}::test_19_of_20_releases_of_a_random_part_cover_the_level",
    f"{PROMISE}::test_scores_of_a_known_number",
)
mutant(
    "calibration.py",
    "release_confidence=rule.release_confidence,\n",
    "release_confidence=None,\n",
    "the certificate promises what the search did not aim at",
    f"{PROMISE}::test_scores_of_a_known_number",
    f"{PROMISE}::test_on_demand_the_release_covers_the_level",
)
mutant(
    "release.py",
    "        release_confidence=request.release_confidence,\n",
    "",
    "release_confidence of an estimator is dropped",
    f"{PROMISE}::test_on_demand_the_release_covers_the_level",
)
mutant(
    "calibration.py",
    'return {"release_confidence": RELEASE_CONFIDENCE, "release_level": min(covered)}',
    'return {"release_confidence": RELEASE_CONFIDENCE, "release_level": 1 - rule.alphas[index]}',
    "a certificate says that a single release covers the level of the average",
    f"{PROMISE}::test_a_split_certificate_says_what_one_release_covers",
)
mutant(
    "guarantees/certificate.py",
    "if guarantee != AUTO and not guarantee_of(guarantee).held_out:",
    "if guarantee is None:",
    "what one release covers is promised where training records are reused",
    f"{PROMISE}::test_refused_where_training_records_are_reused",
)

# ---- words of a promise

WORDS = "tests/test_promises_in_words.py"
mutant(
    "_printed.py",
    "math.floor((level + _FLOAT_HAIR) * unit)",
    "round(level * unit)",
    "a lower bound is printed rounded up",
    f"{WORDS}::test_a_lower_bound_is_never_rounded_up",
)
mutant(
    "_printed.py",
    "math.ceil((level - _FLOAT_HAIR) * unit)",
    "round(level * unit)",
    "an upper bound is printed rounded down",
    f"{WORDS}::test_a_printed_bound_is_true",
)
mutant(
    "calibration.py",
    "rule.unit.facts(rule.n_records)",
    "rule.unit.facts(rule.n_nominal)",
    "records of a split certificate are those of the part",
    f"{WORDS}::test_records_of_a_split_certificate_are_those_of_the_whole_table",
)

# ---- persons

PERSONS, TRAINED_PERSONS = "tests/test_persons.py", "tests/training/test_persons.py"
ONE_SENSITIVITY = f"{TRAINED_PERSONS}::test_a_person_moves_every_private_sum_by_one_sensitivity"
EVERY_PART = f"{TRAINED_PERSONS}::test_the_weights_reach_every_part_of_training"
mutant(
    "persons.py",
    "np.repeat(1.0 / self.sizes, self.sizes)",
    "np.repeat(np.ones(len(self.sizes)), self.sizes)",
    "every row of a person weighs as much as a person",
    ONE_SENSITIVITY,
)
mutant(
    "persons.py",
    "np.lexsort((drawn, number[by_person]))",
    "np.lexsort((np.arange(len(drawn)), number[by_person]))",
    "the first rows of a person are kept, not a choice",
    f"{PERSONS}::test_the_kept_rows_are_a_uniform_choice",
)
mutant(
    "persons.py",
    "(drawn * self.sizes).astype(np.int64)",
    "0 * (drawn * self.sizes).astype(np.int64)",
    "a person's first row is scored, not a random one",
    f"{PERSONS}::test_the_scored_row_is_uniform_among_the_kept_ones",
)
mutant(
    "persons.py",
    "order[place < cap]",
    "order[place <= cap]",
    "one row more than the cap is kept",
    f"{PERSONS}::test_the_kept_rows_are_a_uniform_choice",
)
mutant(
    "persons.py",
    "return np.repeat(drawn, self.sizes), ",
    "return np.repeat(drawn, self.sizes)[::-1], ",
    "a split takes the rows of other persons",
    f"{PERSONS}::test_parts_draw_persons",
)
mutant(
    "training/gradients.py",
    "factors[: len(weights)] *= weights\n",
    "factors[: len(weights)] *= 1.0\n",
    "clipped gradients forget the weight",
    ONE_SENSITIVITY,
)
mutant(
    "training/descent.py",
    "self._target[:size], records.owners.weights_of(index)",
    "self._target[:size], np.ones(m)",
    "sampled batches forget the weight",
    f"{TRAINED_PERSONS}::test_repeating_a_persons_only_row_changes_nothing",
)
mutant(
    "training/descent.py",
    "records.owners.rows_of(persons)",
    "persons",
    "a batch of persons is read as a batch of rows",
    f"{TRAINED_PERSONS}::test_repeating_a_persons_only_row_changes_nothing",
)
mutant(
    "training/dpsgd.py",
    "poisson_batches(rng, self.places.count, rate)",
    "poisson_batches(rng, len(self.records.rows), rate)",
    "batches draw rows, not persons",
    f"{TRAINED_PERSONS}::test_batches_draw_whole_persons",
)
mutant(
    "training/feeding.py",
    "Records.build(features, target, block.persons,",
    "Records.build(features, target, None,",
    "the engine is not told of the persons",
    EVERY_PART,
)
mutant(
    "training/release.py",
    "None if weights is None else weights[start:stop]",
    "None",
    "steps are fitted on rows",
    f"{TRAINED_PERSONS}::test_repeating_a_persons_only_row_changes_nothing",
)
mutant(
    "training/whitening.py",
    "        if weights is not None:\n            scaled *=",
    "        if weights is None:\n            scaled *=",
    "whitening drops the weights",
    f"{TRAINED_PERSONS}::test_repeating_a_persons_only_row_changes_nothing",
)
mutant(
    "training/private_target.py",
    "return self.moments(block.targets, block.weights)",
    "return self.moments(block.targets)",
    "the target's scale drops the weights",
    f"{TRAINED_PERSONS}::test_repeating_a_persons_only_row_changes_nothing",
)
mutant(
    "training/perturbation.py",
    "tolerance=tolerance, weights=data.persons.weights)",
    "tolerance=tolerance)",
    "output perturbation drops the weights",
    f"{TRAINED_PERSONS}::test_weighted_minimiser_is_that_of_repeated_rows",
)
mutant(
    "training/summary.py",
    "self.moments(raw, y, units.weights)",
    "self.moments(raw, y)",
    "sufficient statistics drop the weights",
    f"{TRAINED_PERSONS}::test_repeating_a_persons_only_row_changes_nothing",
)
mutant(
    "training/opacus.py",
    "None if weights is None else weights[part])",
    "None)",
    "torch drops the weights",
    f"{TRAINED_PERSONS}::test_torch_modules_train_on_persons",
)
mutant(
    "training/influence.py",
    "for ahead in range(1, int(persons.sizes.max(initial=1))):",
    "for ahead in range(1, 1):",
    "the correction removes one row of a person",
    f"{TRAINED_PERSONS}::test_the_correction_removes_the_whole_person",
)

# ---- what a module, a function, a file or a word must not do

MODULES = "tests/training/test_torch_modules.py"
mutant(
    "training/opacus.py",
    "            check_unchanged(self.start, self.inner)\n",
    "            pass\n",
    "buffers that training changed are released",
    f"{MODULES}::test_buffers_that_change_are_refused_on_made_up_rows_and_after_training",
)
mutant(
    "training/torch_modules.py",
    "sample.shape != (len(rows), *parameter.shape)",
    "sample.shape[1:] != parameter.shape",
    "tokens folded into the batch are clipped one by one",
    f"{MODULES}::test_the_rows_are_counted_on_the_records_too",
)
mutant(
    "training/opacus.py",
    "        self._rehearse(shape, classes)\n",
    "",
    "a module is first tried on the records",
    f"{MODULES}::test_training_tries_a_module_on_made_up_records_first",
)
mutant(
    "training/opacus.py",
    "released * (self.clip_norm / normaliser)",
    "released / normaliser",
    "torch steps forget the clip norm",
    f"{TORCH}::test_same_updates_as_the_numpy_engine",
)
TORCH_FILES = "tests/training/test_torch_files.py"
mutant(
    "training/torch_model.py",
    "        if not same:\n",
    "        if False:\n",
    "a module with another activation takes the saved parameters",
    f"{TORCH_FILES}::test_another_architecture_is_refused",
)
mutant(
    "training/torch_model.py",
    "copied = copy.deepcopy(module)",
    "copied = module",
    "loading writes into the caller's module",
    f"{TORCH_FILES}::test_a_module_comes_back_in_a_fresh_copy_of_its_architecture",
)
PREFIT_TESTS = "tests/test_prefit.py"
mutant(
    "conformal/prefit.py",
    'check_row_by_row("estimator"',
    '0 and check_row_by_row("estimator"',
    "a prefit estimator may look at the other records",
    f"{PREFIT_TESTS}::test_what_cannot_be_promised_is_refused_before_anything_is_spent",
)
mutant(
    "conformal/base.py",
    "            *((PREFIT,) if self.prefit else ()),\n",
    "",
    "a certificate does not say that it trusts a prefit estimator",
    f"{PREFIT_TESTS}::test_all_records_calibrate_and_only_the_search_is_paid",
)
ONE_RECORD = "tests/test_one_record.py"
mutant(
    "records.py",
    "    for part in parts if n > 1 else ():",
    "    for part in parts[:1] if n > 1 else ():",
    "a function is asked again about its first row only",
    ONE_RECORD,
)
mutant(
    "scores/labels.py",
    "and high <= most + _ROUNDING",
    "",
    "an own score may lie above its range",
    ONE_RECORD,
)
mutant(
    "release.py",
    "if request.task.classes_found:",
    "if False:",
    "found classes are certified",
    "tests/test_found_classes.py::test_found_classes_are_never_certified",
)
mutant(
    "_printed.py",
    "math.ceil(epsilon * 1000 - 1e-9)",
    "math.floor(epsilon * 1000)",
    "a spent epsilon is rounded down",
    "tests/test_promises_in_words.py::test_a_printed_bound_is_true",
)
mutant(
    "budget.py",
    "            self._require_name(account)\n            account.require(",
    "            account.require(",
    "a reservation for other records",
    f"{STORE}::test_spending_repeats_the_name_of_the_data_set",
)
mutant(
    "budget.py",
    "        if seeded:\n            raise ValueError(_SEEDED)\n        self",
    "        self",
    "a seeded fit is found out only after it has looked at the records",
    f"{STORE}::test_a_seeded_fit_is_refused_before_a_record_is_looked_at",
)
mutant(
    "cli/evaluation.py",
    "return not overlap",
    "return True",
    "records of the fit are called held out",
    f"{CLI}::test_records_of_a_coarse_table_are_neither_refused_nor_called_held_out",
)
FITS, GAMES = "tests/test_person_fits.py", "tests/test_audit_persons.py"
SPLIT_PERSONS = f"{FITS}::test_split_parts_and_groups_draw_persons"
NO_IDS = f"{FITS}::test_without_ids_every_row_pays_for_the_group"
mutant(
    "release.py",
    "drawn = self.coins.uniform(self.places.persons[block.id]) <",
    "drawn = np.arange(block.owners.count) % 2 + self.coins.uniform(range(1)) <",
    "the part of a person follows from the place in the table",
    SPLIT_PERSONS,
    f"{FITS}::test_one_row_a_person_equals_the_row_level_fit_number_for_number",
    "tests/test_wiring.py",
)
mutant(
    "conformal/reading.py",
    "targets[kept], owners, groups, kept)",
    "targets[kept], None, groups, kept)",
    "training is not told of the persons",
    SPLIT_PERSONS,
)
mutant(
    "scoring.py",
    "corrected=self.corrected, persons=persons",
    "corrected=self.corrected, persons=None",
    "the correction of a person fit removes one row",
    f"{FITS}::test_corrected_scores_remove_the_whole_person",
)
mutant(
    "privacy/ledger.py",
    'int(self.public_facts.get("rows_per_person", 1))',
    "1",
    "a ledger without ids promises to a row what it says about a person",
    NO_IDS,
)
mutant(
    "release.py",
    "found.ledger.declare(**request.unit.group_facts)",
    "found.ledger",
    "a release without ids does not say how many rows it protects",
    NO_IDS,
)
mutant(
    "searches.py",
    "gdp_mu(budget.epsilon, budget.delta) / group)",
    "gdp_mu(budget.epsilon, budget.delta))",
    "the group is looked at and not paid for at the start",
    NO_IDS,
    harmless="the planned ledger is tried and the budget lowered until it fits",
)
mutant(
    "searches.py",
    "if spent <= budget.epsilon:\n            return tried",
    "if spent:\n            return tried",
    "what k rows cost is computed and not looked at",
    f"{FITS}::test_sampled_training_without_ids_stays_within_the_budget",
)
mutant(
    "persons.py",
    'if ledger.entries and "n_persons" not in ledger.public_facts:',
    "if not ledger.entries:",
    "a model trained per record gets a promise per person",
    f"{FITS}::test_what_cannot_train_on_persons_is_refused",
    f"{FITS}::test_calibrate_asks_for_training_per_person",
)
mutant(
    "calibration.py",
    "np.asarray(scores)[kept[owners.one_row_each(random_state)]]",
    "np.asarray(scores)[kept]",
    "calibrate counts every score of a person",
    f"{FITS}::test_calibrate_counts_one_random_record_of_each_person",
)
mutant(
    "cli/fits.py",
    "persons=records.persons, schema",
    "schema",
    "the command line drops the column of persons",
    f"{FITS}::test_the_command_line_fits_on_persons_and_predict_ignores_the_column",
)
mutant(
    "release.py",
    "if (rule, spent.event) != (planned.rule, strategy.spent.event):",
    "if rule != planned.rule:",
    "training that cost more than was planned leaves too much to the search",
    "tests/test_data_path.py::test_training_that_cost_more_than_planned_is_planned_again",
)
mutant(
    "scoring.py",
    "block = block.through(*steps)",
    "assert steps is not None",
    "records are scored before preprocessing",
    "tests/test_data_path.py::test_records_are_preprocessed_once_to_train_and_once_to_score",
)
mutant(
    "privacy/ledger.py",
    "tuple(stages) if len(parallel_parts(event)) == len(stages) else ()",
    "()",
    "the parts of a split lose their names",
    f"{LEDGER}::test_disjoint_stages_keep_their_names",
)
mutant(
    "training/networks.py",
    '    if rows.dtype.kind == "f" and not _finite(rows):',
    "    if False:",
    "the engine trains on what is not a number",
    "tests/training/test_dpsgd.py::test_bad_records_are_refused_without_printing_them",
)
mutant(
    "release.py",
    "if store is not None and request.unit.group > 1:",
    "if store is not None and request.unit.group < 1:",
    "a budget store charges one row where a person with several is promised something",
    f"{FITS}::test_without_ids_a_budget_store_is_refused",
)
mutant(
    "cli/evaluation.py",
    "if not self.one_each or person is None",
    "if self.one_each or person is None",
    "a promise about persons is checked on rows",
    f"{FITS}::test_the_command_line_fits_on_persons_and_predict_ignores_the_column",
)


# ---- records in blocks

BLOCKS = "tests/sources/test_source_fits.py"
mutant(
    "privacy/seeds.py",
    '(check_count("step", step, minimum=0) << 96) + ',
    "",
    "a module draws alike at every step",
    f"{BLOCKS}::test_what_a_module_draws_belongs_to_block_and_step",
)
mutant(
    "privacy/seeds.py",
    ' + (check_count("block", block, minimum=0) << 56)',
    "",
    "a module draws alike in all blocks",
    f"{BLOCKS}::test_what_a_module_draws_belongs_to_block_and_step",
)
mutant(
    "training/opacus.py",
    "replace(gradient, step=step, shares=places.shares(drawn))",
    "replace(gradient, step=step, shares=places.shares(drawn[:0] if step else drawn))",
    "only the first step of a torch module has a batch",
    f"{TORCH}::test_blocks_draw_batches_of_their_own_in_every_step",
)
PERSON_BLOCKS = "tests/sources/test_person_blocks.py"
WHOLE = f"{PERSON_BLOCKS}::test_a_fit_on_files_and_clusters_is_that_in_memory"
mutant(
    "conformal/reading.py",
    "source = source.map(KeptRows(draws, places, given.unit.cap))",
    "assert draws",
    "rows of persons in blocks are not capped",
    WHOLE,
)
mutant(
    "release.py",
    "if unit_of_blocks(records).by_person:",
    "if not records:",
    "all scores of a person in a block are counted",
    WHOLE,
)
mutant(
    "training/private_bounds.py",
    "counted = source.map(OneRowEach(draws, places_of(source)))",
    "assert draws",
    "all rows of a person in a block are counted for bounds",
    f"{PERSON_BLOCKS}::test_repeating_a_persons_only_row_changes_no_sum_and_no_batch",
)
mutant(
    "sources/persons.py",
    '(ids.dtype.kind == "f" and',
    '(ids.dtype.kind == "c" and',
    "an id that is a float in one file is another person",
    f"{PERSON_BLOCKS}::test_ids_of_files_with_other_types_are_the_same_persons",
)
mutant(
    "persons.py",
    '    _check_told_apart(ids, str(getattr(persons, "dtype", "")).lower())\n',
    "",
    "two persons whose ids look alike are one",
    "tests/test_persons.py::test_ids_of_which_two_may_look_like_one_are_refused",
)
mutant(
    "sources/persons.py",
    "ids.max() >= 2**63",
    "ids.max() >= 2**64",
    "a large id of a file becomes a negative one",
    f"{PERSON_BLOCKS}::test_what_is_refused",
)
mutant(
    "sources/persons.py",
    "for ids in (piece[2] for piece in pieces)}",
    "for ids in (piece[2] for piece in pieces) if len(ids)}",
    "a person is text in one file, a number in another, and counts twice",
    f"{PERSON_BLOCKS}::test_text_in_one_part_and_numbers_in_another_are_refused_wherever_they_meet",
)
mutant(
    "sources/persons.py",
    "place = hash_array(",
    "place = np.arange(len(ids), dtype=np.uint64) + 0 * hash_array(",
    "rows of one person go to several blocks",
    f"{PERSON_BLOCKS}::test_all_rows_of_a_person_meet_in_one_block",
)
GROUP = "tests/sources/test_distributed.py"
mutant(
    "sources/distributed.py",
    "replace(block, id=self.before + block.id)",
    "block",
    "blocks of different processes draw alike",
    f"{GROUP}::test_blocks_are_numbered_after_those_of_the_processes_before",
)
mutant(
    "sources/distributed.py",
    "self._to_all(final=_packed(Failure.of(error)))",
    "self._to_all(final=_packed(None))",
    "an error of process 0 is a success in the others",
    f"{GROUP}::test_an_error_of_process_0_is_one_of_all",
)
mutant(
    "release.py",
    "return block.part(drawn if self.held_out else ~drawn)",
    "return block.part(drawn | ~drawn)",
    "held-out records of a source are trained on",
    f"{BLOCKS}::test_held_out_records_of_blocks_are_a_coin_each",
)
mutant(
    "training/feeding.py",
    "shares = None if persons is None else self._places.shares(persons)",
    "shares = None",
    "blocks take everybody, and the event says that they sample",
    f"{BLOCKS}::test_one_more_record_changes_its_own_share_alone",
)
mutant(
    "release.py",
    "self.coins.uniform(self.places.persons[block.id])",
    "self.coins.uniform(range(block.owners.count))",
    "records at the same place of two blocks share the coin of the split",
    f"{BLOCKS}::test_held_out_records_of_blocks_are_a_coin_each",
)
mutant(
    "privacy/seeds.py",
    "np.random.PCG64(self.seed).advance(place)",
    "np.random.PCG64(self.seed).advance(place // 2 * 2)",
    "a block starts at a draw of its neighbor",
    f"{BLOCKS}::test_draws_belong_to_places_whoever_makes_them",
)
mutant(
    "conformal/reading.py",
    "        check_finite(rows)\n",
    "        pass\n",
    "bad rows of a block are found after the budget is spent, or never",
    f"{BLOCKS}::test_a_bad_record_in_a_late_block_is_refused_as_in_memory_before_anything_is_spent",
)
mutant(
    "scoring.py",
    "block.targets[block.groups == self.group]",
    "block.targets",
    "in blocks every group counts all records",
    f"{SPIES}::test_each_group_counts_its_own_records_only",
)
mutant(
    "strategy.py",
    "            require_sources(self.mechanism)\n",
    "            pass\n",
    "a mechanism that needs an array is found out after the budget is reserved",
    f"{BLOCKS}::test_what_knows_arrays_only_gets_those_of_this_process",
)

# ---- what a report says about itself

mutant(
    "cli/fits.py",
    'store.remaining(), len(told["entries"])',
    'told["epsilon"], len(told["entries"])',
    "a report says that nothing of the study's budget was spent",
    "tests/test_cli.py::test_a_report_says_what_was_declared_and_what_the_study_has_left",
)

# ---- bounds found privately

BOUNDS = "tests/training/test_private_bounds.py"
mutant(
    "training/private_bounds.py",
    "            compose(own, inner.event),",
    "            inner.event,",
    "what training reports leaves the bounds out",
    f"{BOUNDS}::test_the_event_is_that_of_the_noise_that_is_drawn",
)
mutant(
    "training/private_bounds.py",
    "noisy = counts * noise.scale + drawn",
    "noisy = counts * noise.scale + 0 * drawn",
    "bounds are found without noise",
    f"{BOUNDS}::test_noise_reaches_the_counts",
)
mutant(
    "training/private_bounds.py",
    "self.noise.event(self._columns)",
    "self.noise.event(1)",
    "the counts of one column are paid for",
    f"{BOUNDS}::test_the_event_is_that_of_the_noise_that_is_drawn",
)
mutant(
    "strategy.py",
    'return Ledger().add("bounds", require_event(own)).add("training", paid_event(inner))',
    'return Ledger().add("training", paid_event(inner))',
    "the bounds are not in the plan, so universal levels and reservations leave them out",
    f"{BOUNDS}::test_bounds_are_an_entry_of_the_ledger_and_count_as_training",
    f"{BOUNDS}::test_the_plan_holds_what_is_spent",
)
mutant(
    "tasks.py",
    "return replace(self, y_bounds=(low, high), private_range=False)",
    "return replace(self, private_range=False)",
    "scores are searched in the unit range instead of the one that was found",
    f"{BOUNDS}::test_bounds_are_an_entry_of_the_ledger_and_count_as_training",
)


# ---- the secret split
SECRET = "tests/privacy/test_secret_split.py"
SUMMED = f"{SECRET}::test_the_cost_is_that_of_all_outcomes_summed"
mutant(
    "privacy/accounting/secret_split.py",
    "ratios = ((1 - f) * training.ratios[:, None] + f * held_out.ratios).ravel()",
    "ratios = (f * training.ratios[:, None] + (1 - f) * held_out.ratios).ravel()",
    "the chances of the two parts exchanged",
    SUMMED,
)
mutant(
    "privacy/accounting/secret_split.py",
    "losses, upper, lower = -losses, without, with_record",
    "losses, upper, lower = losses, with_record, without",
    "both directions are that of removing a record",
    SUMMED,
)
mutant(
    "privacy/accounting/secret_split.py",
    'opposite: Direction = "add" if direction == "remove" else "remove"',
    "opposite: Direction = direction",
    "negative losses of a sampled training from the wrong direction",
    f"{SECRET}::test_sampled_training_costs_what_its_outcomes_sum_to",
)
mutant(
    "privacy/accounting/secret_split.py",
    "beyond = (1 - f) * training.beyond + f * held_out.beyond",
    "beyond = 0.0",
    "outcomes that only the record makes possible are free",
    f"{SECRET}::test_what_only_the_record_makes_possible_counts",
)
mutant(
    "privacy/accounting/base.py",
    "event = event if self.keeps_secrets else disclosed(event)",
    "event = event",
    "an accountant that cannot mix is asked to",
    f"{SECRET}::test_the_mixture_costs_less_than_the_worse_part_and_other_accountants_count_that",
)
mutant(
    "privacy/events.py",
    "return ParallelDpEvent(parts) if isinstance(event, SecretSplitDpEvent)",
    "return parts[0] if isinstance(event, SecretSplitDpEvent)",
    "of a disclosed split only training counts",
    f"{SECRET}::test_the_mixture_costs_less_than_the_worse_part_and_other_accountants_count_that",
)
mutant(
    "searches.py",
    "if rule.guarantee.held_out and spent.entries and (notes or secret is not None):",
    "if rule.guarantee.held_out and spent.entries and notes:",
    "training of a secret part counts as if all records had met it where nothing is searched",
    f"{SPIES}::test_a_split_that_never_searches_spends_within_the_budget",
)
