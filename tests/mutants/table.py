# ruff: noqa: E501 (code before and after stands in one line)
"""Errors that somebody could make, with the tests that must notice them. Small, plausible, one each.

Most are about connections: a formula that is right, and a caller that gives it the wrong number or drops what it
returns. An entry names a function by ``module:qualified name``, the code before (an expression or statements, found
exactly once in that function, whatever its layout), the code after, what would go wrong, and the tests that fail on it.
A function that moved to another module is still found by its qualified name. Whoever adds a promise adds its errors;
what random changes of operators and constants find anyway (``draw.py``) needs no entry.
"""

from dataclasses import dataclass
from pathlib import Path

from trees import edited


@dataclass(frozen=True)
class Mutant:
    """One error: edits of one function, what they would mean, the tests that should fail."""

    where: str
    edits: tuple[tuple[str, str], ...]
    why: str
    tests: tuple[str, ...]

    @property
    def text(self) -> str:
        """What the words of the command line are looked for in."""
        return " ".join((self.where, self.why, *self.tests))

    def apply(self, root: Path) -> None:
        """Make the error in the tree at ``root``."""
        path, text = edited(root, self.where, self.edits)
        path.write_text(text)


MUTANTS: list[Mutant] = []


def mutant(where: str, before: str, after: str, why: str, *tests: str, also: tuple[str, str] | None = None) -> None:
    """Add one to the list; ``also`` is a second edit of the same function."""
    edits = ((before, after),) if also is None else ((before, after), also)
    MUTANTS.append(Mutant(where, edits, why, tests))


# ---- audit

mutant(
    "audit.bounds:audited_epsilons",
    "second",
    "first",
    "the bound is tested on the half that chose its threshold",
    "tests/test_audit.py::test_the_half_that_chose_a_threshold_proves_nothing",
)
mutant(
    "audit.play:audit",
    "not null",
    "False",
    "both worlds of an audit are the same",
    "tests/test_audit.py::test_catches_clipping_switched_off",
)
# ---- budget

mutant(
    "budget:BudgetStore._transaction",
    "'BEGIN IMMEDIATE'",
    "'BEGIN'",
    "two processes read before either writes",
    "tests/test_budget.py::test_the_lock_is_taken_before_anything_is_read",
)
mutant(
    "budget:_as_ledger",
    "event.entries",
    "event.entries[:1]",
    "only the first entry of a fit is written down",
    "tests/test_budget.py::test_a_fit_spends_from_the_store_what_its_ledger_says",
)
mutant(
    "budget:BudgetStore.reserve",
    "self._require_name(account)",
    "pass",
    "a reservation for other records",
    "tests/test_budget.py::test_spending_repeats_the_name_of_the_data_set",
)
mutant(
    "budget:BudgetStore.require_spendable",
    "if seeded:\n    raise ValueError(_SEEDED)",
    "pass",
    "a seeded fit is found out only after it has looked at the records",
    "tests/test_budget.py::test_a_seeded_fit_is_refused_before_a_record_is_looked_at",
)
# ---- calibration

mutant(
    "calibration:_search_all",
    "child_seeds(seed, n_searches)",
    "[seed] * n_searches",
    "all groups share one noise",
    "tests/test_wiring.py::test_each_search_draws_its_own_noise",
)
mutant(
    "calibration:_search_all",
    "noise",
    "searches.noises[-1]",
    "every level is searched with the last one's noise",
    "tests/test_wiring.py::test_each_level_has_the_noise_of_its_own_sensitivity",
)
mutant(
    "calibration:search_thresholds",
    "by_level[i]",
    "by_level[0]",
    "every certificate holds the first level's numbers",
    "tests/test_wiring.py::test_each_certificate_holds_its_own_numbers",
)
mutant(
    "calibration:search_thresholds",
    "ledger = ledger.mark_seeded()",
    "pass",
    "a seeded search looks private",
    "tests/test_calibration.py::TestBudget::test_with_the_default_accountant",
)
mutant(
    "calibration:_search_all",
    "rule.release_confidence",
    "None",
    "the certificate promises what the search did not aim at",
    "tests/test_release_confidence.py::test_scores_of_a_known_number",
    "tests/test_release_confidence.py::test_on_demand_the_release_covers_the_level",
)
mutant(
    "calibration:_bound_single_release",
    "min(covered)",
    "1 - rule.alphas[index]",
    "a certificate says that a single release covers the level of the average",
    "tests/test_release_confidence.py::test_a_split_certificate_says_what_one_release_covers",
)
mutant(
    "calibration:_make_certificate",
    "rule.n_records",
    "rule.n_nominal",
    "records of a split certificate are those of the part",
    "tests/test_promises_in_words.py::test_records_of_a_split_certificate_are_those_of_the_whole_table",
)
mutant(
    "calibration:_choose_one_row_each",
    "kept[owners.one_row_each(random_state)]",
    "kept",
    "calibrate counts every score of a person",
    "tests/test_person_fits.py::test_calibrate_counts_one_random_record_of_each_person",
)
mutant(
    "quantile.offsets:Aim.level_of_one_release",
    "float(self.size.released) + 2 * self.size.reach(confidence)",
    "float(self.size.released)",
    "the level of one release is computed at the released size",
    "tests/test_promised_numbers.py::test_the_level_of_a_single_release_is_result_i_at_the_farthest_size",
)
mutant(
    "calibration:_make_certificate",
    "assumptions.append(OVERLAPPING_GROUPS.format(rule.groups_per_record) if several else FIXED_GROUPS)",
    "None",
    "the certificate of groups is without its assumption",
    "tests/test_promised_numbers.py::test_groups_have_their_assumption_and_no_rank_of_the_whole",
)
mutant(
    "calibration:_list_search_facts",
    "1 - q.alpha",
    "1.0",
    "the public fact says that every inner level is 1",
    "tests/test_promised_numbers.py::test_the_inner_levels_are_those_of_gaussian_training",
)
# ---- cli

mutant(
    "cli.run:summarize_fit",
    "estimator.ledger_.epsilon(delta, estimator.accountant)",
    "estimator.ledger_.epsilon(delta, estimator.accountant, rows=1)",
    "the JSON summary tells the epsilon of one row where k are protected",
    "tests/test_promised_numbers.py::test_the_summary_of_a_fit_tells_the_groups_epsilon",
)
mutant(
    "cli.fit:choose_csv_format",
    "options.decimal",
    "None",
    "the decimal mark of the command line is dropped",
    "tests/cli/test_cli_csv.py::test_one_table_in_every_form_gives_one_fit",
)
mutant(
    "cli.wizard:_Wizard._store",
    "write_atomically(self.path, schema.to_toml().encode())",
    "None",
    "answers are lost when the questions are interrupted",
    "tests/cli/test_wizard.py::test_questions_resume_after_an_interruption_anywhere",
)
mutant(
    "data.csv_format:CSVFormat._to_usual_numbers",
    "pc.if_else(is_number, cells, pa.scalar(_NO_NUMBER, cells.type))",
    "cells",
    "a number in another format is read, a thousand times too large",
    "tests/cli/test_cli_csv.py::test_a_number_in_another_format_is_never_read",
)
mutant(
    "data.sources.files:TableSource.frames",
    "as_frame(batch, self._schema, self._csv_format)",
    "as_frame(batch, self._schema)",
    "a source reads numbers without the declared marks",
    "tests/cli/test_cli_csv.py::test_the_source_takes_the_format_too",
)
mutant(
    "data.schema:Schema.groups",
    "np.where(((rows == 0) | (rows == 1)).all(axis=1), index, -1)",
    "index",
    "an undeclared value gets the threshold of a group",
    "tests/cli/test_cli_csv.py::test_an_undeclared_value_belongs_to_no_group",
)
mutant(
    "cli.tables:Table.require_columns",
    "self.column_names if 2 * len(missing) <= len(names) or is_parquet(self.path) else ()",
    "self.column_names",
    "cells of a file without header are suggested as names",
    "tests/cli/test_cli_help.py::test_misspelt_columns_and_files",
)
# ---- conformal

mutant(
    "conformal.base:PrivateConformal._request",
    "self.delta",
    "1e-05",
    "the estimator's delta is ignored",
    "tests/test_wiring.py::test_every_public_choice_reaches_the_ledger",
)
mutant(
    "conformal.base:PrivateConformal._request",
    "{name: getattr(self, name) for name in _UNCHANGED}",
    "{name: getattr(self, name) for name in _UNCHANGED - {'accountant'}}",
    "the estimator's accountant is ignored",
    "tests/test_wiring.py::test_every_public_choice_reaches_the_ledger",
)
mutant(
    "conformal.base:PrivateConformal._request",
    "self._choose_bounds(records.width, names, signal)",
    "FeatureBounds(records.records.whole.read().min(axis=0) - 1e-09, records.records.whole.read().max(axis=0) + 1e-09)",
    "the estimator takes its feature bounds from the records",
    "tests/test_wiring.py::test_every_public_choice_reaches_the_ledger",
)
mutant(
    "conformal.base:PrivateConformal._apply_schema",
    "return schema.encode(X)",
    "return (*schema.encode(X)[:2], persons)",
    "the column of persons is not used",
    "tests/test_frames.py::test_persons_come_from_the_schema",
)
mutant(
    "data.schema:Schema.require_complete",
    "name in owners",
    "False",
    "a scale or bounds of one column reach another feature of the same name",
    "tests/test_schema.py::test_two_features_of_one_name_are_refused_and_keep_their_places",
)
mutant(
    "conformal.reading:records_from_source",
    "not source.by_person",
    "False",
    "a person whose rows lie in two processes counts as two",
    "tests/sources/test_distributed.py::test_persons_are_known_by_the_source",
)
mutant(
    "conformal.reading:records_from_arrays",
    "Block(0, rows, targets[kept], owners, groups, kept)",
    "Block(0, rows, targets[kept], None, groups, kept)",
    "training does not get the persons",
    "tests/test_person_fits.py::test_split_parts_and_groups_draw_persons",
)
mutant(
    "estimators.ingest:records_from_source",
    "source.map(KeptRows(draws, places, given.unit.cap))",
    "source",
    "rows of persons in blocks are not capped",
    "tests/sources/test_person_blocks.py::test_a_fit_on_files_and_clusters_is_that_in_memory",
)
mutant(
    "conformal.reading:_FirstLook.__call__",
    "check_finite(rows)",
    "pass",
    "bad rows of a block are found after the budget is spent, or never",
    "tests/sources/test_source_fits.py::test_a_bad_record_in_a_late_block_is_refused_as_in_memory_before_anything_is_spent",
)
# ---- guarantees

mutant(
    "guarantees.stability:LinearHead.score_lipschitz",
    "math.sqrt(2.0) / 4",
    "0.25",
    "the scores of a softmax head move less than they do",
    "tests/training/test_stability.py::test_softmax_constants_bound_random_heads",
)
mutant(
    "guarantees.formulas:minimum_part_size",
    "while law.cdf(size) <= tail:\n    size += 1",
    "size += 1",
    "a random part is taken to be larger than it is",
    "tests/test_guarantees.py::TestResultA::test_minimum_part_size_is_the_exact_binomial_quantile",
)
mutant(
    "guarantees.universal:_inner_levels",
    "'add'",
    "'remove'",
    "the inner level is taken from the wrong direction",
    "tests/test_wiring.py::test_the_inner_level_uses_the_direction_of_result_b",
)
mutant(
    "guarantees.certificate:check_release_confidence",
    "guarantee != AUTO and (not guarantee_of(guarantee).held_out)",
    "guarantee is None",
    "what one release covers is promised where training records are reused",
    "tests/test_release_confidence.py::test_refused_where_training_records_are_reused",
)
mutant(
    "guarantees.stability:stability_output_perturbation",
    "2 * steady * n_records / (n_records + 1) + slack",
    "2 * steady * n_records / (n_records + 1)",
    "the shift of averaged losses forgets the tolerance of the solver",
    "tests/test_promised_numbers.py::test_the_shift_of_a_penalized_risk_is_the_formula",
)
# ---- persons

mutant(
    "persons:Persons.weights",
    "1.0 / self.sizes",
    "np.ones(len(self.sizes))",
    "every row of a person weighs as much as a person",
    "tests/training/test_persons.py::test_a_person_moves_every_private_sum_by_one_sensitivity",
)
mutant(
    "data.persons:choose_kept_rows",
    "np.lexsort((drawn, number[by_person]))",
    "np.arange(len(number))",
    "the first rows of a person are kept, not a choice",
    "tests/test_persons.py::test_the_kept_rows_are_a_uniform_choice",
)
mutant(
    "persons:Persons.part",
    "np.repeat(drawn, self.sizes)",
    "np.repeat(drawn, self.sizes)[::-1]",
    "a split takes the rows of other persons",
    "tests/test_persons.py::test_parts_draw_persons",
)
# ---- privacy

mutant(
    "privacy.events:dpsgd_event",
    "SelfComposedDpEvent(step, _count('steps', steps))",
    "step",
    "sampled training costs as much as its first step",
    "tests/training/test_dpsgd.py::test_event_is_known_before_the_data",
)
mutant(
    "privacy.events:dpsgd_event",
    "gaussian_event(noise_multiplier, steps)",
    "gaussian_event(noise_multiplier)",
    "full-batch training costs as much as its first step",
    "tests/training/test_dpsgd.py::test_event_is_known_before_the_data",
)
mutant(
    "privacy.events:<module>",
    "[h for part in event.events for h in _histories(part)]",
    "[h for part in event.events[:1] for h in _histories(part)]",
    "of disjoint parts only the first counts",
    "tests/privacy/test_accounting.py::test_parallel_inside_sequential_takes_the_worst_history",
)
mutant(
    "privacy.accounting.base:_proven_pairs",
    "_OPPOSITE[direction]",
    "direction",
    "the trade-off's other half is taken from the same direction",
    "tests/privacy/test_accounting.py::test_add_direction_of_one_sampled_step_is_the_neyman_pearson_curve",
)
mutant(
    "privacy.accounting.pld:_LossProfile._sides",
    "loss._pmf_add if direction == 'add' else loss._pmf_remove",
    "loss._pmf_remove if direction == 'add' else loss._pmf_add",
    "adding and removing a record exchanged",
    "tests/privacy/test_accounting.py::test_add_direction_of_one_sampled_step_is_the_neyman_pearson_curve",
)
mutant(
    "privacy.accounting.pld:_discrete_gaussian_loss",
    "first - 1 - sensitivity",
    "first - 1 - sensitivity // 2",
    "integer noise accounted for half the sensitivity",
    "tests/privacy/test_accounting.py::test_discrete_gaussian_loss_against_enumeration",
)
mutant(
    "privacy.accounting.base:Accountant._group_epsilon",
    "('add', 'remove')",
    "('add',)",
    "groups: someone who takes records out is forgotten",
    "tests/privacy/test_group.py::test_both_directions_count",
)
mutant(
    "privacy.accounting.group:group_epsilon.chain",
    "rows",
    "rows - 1",
    "groups: one record too few",
    "tests/privacy/test_group.py::test_integer_noise_against_the_mechanism_with_k_times_the_sensitivity",
)
mutant(
    "privacy.accounting.base:Accountant._group_epsilon",
    "rows * mu",
    "math.sqrt(rows) * mu",
    "groups: records of one person counted as if they were independent releases",
    "tests/privacy/test_group.py::test_gaussian_noise_costs_k_times_mu_exactly",
)
mutant(
    "privacy.ledger:Ledger.is_private",
    "not self.seeded and (not self.non_private_stages)",
    "not self.non_private_stages",
    "a seeded run looks private",
    "tests/privacy/test_ledger.py::test_a_seed_is_marked",
)
mutant(
    "privacy.ledger:Ledger.epsilon",
    "accountant",
    "'pld'",
    "the ledger ignores the accountant",
    "tests/privacy/test_ledger.py::test_a_budget_is_not_exceeded_by_a_hair",
)
mutant(
    "privacy.solving:sized_lattice_noise.spending",
    "zip(lattices(ratio), counts, strict=True)",
    "zip(lattices(ratio), counts[:1], strict=False)",
    "several levels, noise for one",
    "tests/test_wiring.py::test_a_split_ledger_holds_every_level",
)
mutant(
    "privacy.solving:_smallest_ratio.together",
    "compose(spent, calibration)",
    "calibration",
    "calibration noise forgets what training spent",
    "tests/test_wiring.py::test_records_used_twice_count_twice",
)
mutant(
    "privacy.solving:noise_multiplier.event_at",
    "steps",
    "max(1, steps - 1)",
    "training noise solved for one step less",
    "tests/test_wiring.py::test_a_split_ledger_holds_every_level",
)
mutant(
    "privacy.seeds:secure_bytes",
    "[seed, _INTEGER_NOISE]",
    "seed",
    "training and search share a seeded stream",
    "tests/privacy/test_noise.py::test_training_and_search_do_not_share_a_seeded_stream",
)
mutant(
    "privacy.accounting.secret_split:_mixture_pmf",
    "(1 - f) * training.ratios[:, None] + f * held_out.ratios",
    "f * training.ratios[:, None] + (1 - f) * held_out.ratios",
    "the chances of the two parts exchanged",
    "tests/privacy/test_secret_split.py::test_the_cost_is_that_of_all_outcomes_summed",
)
mutant(
    "privacy.accounting.secret_split:_mixture_pmf",
    "(-losses, without, with_record)",
    "(losses, with_record, without)",
    "both directions are that of removing a record",
    "tests/privacy/test_secret_split.py::test_the_cost_is_that_of_all_outcomes_summed",
)
mutant(
    "privacy.accounting.secret_split:_mixture_pmf",
    "(1 - f) * training.beyond + f * held_out.beyond",
    "0.0",
    "outcomes that only the record makes possible are free",
    "tests/privacy/test_secret_split.py::test_what_only_the_record_makes_possible_counts",
)
mutant(
    "privacy.events:disclose_parts",
    "ParallelDpEvent(parts)",
    "parts[0]",
    "of a disclose_parts split only training counts",
    "tests/privacy/test_secret_split.py::test_the_mixture_costs_less_than_the_worse_part_and_other_accountants_count_that",
)
mutant(
    "privacy.ledger:Ledger.summary",
    "self.epsilon(delta)",
    "self.epsilon(delta, rows=1)",
    "the summary tells the epsilon of one row where k are protected",
    "tests/test_promised_numbers.py::test_the_printed_totals_of_k_rows_are_the_groups",
)
mutant(
    "privacy.ledger:Ledger._table",
    "self.epsilon(delta)",
    "self.epsilon(delta, rows=1)",
    "the table tells the epsilon of one row where k are protected",
    "tests/test_promised_numbers.py::test_the_printed_totals_of_k_rows_are_the_groups",
)
# ---- quantile

mutant(
    "quantile.offsets:Rank.sensitivity",
    "max(level, 1 - level)",
    "1 - level",
    "the linear statistic's sensitivity is wrong for levels below one half",
    "tests/quantile/test_search.py::TestRankStatistic",
)
mutant(
    "quantile.search:_NoisePlan.of",
    "LatticeNoise.of(count_noise or 0.0, sensitivity)",
    "LatticeNoise.of(count_noise or 0.0, Fraction(1, 4))",
    "integer noise made for another sensitivity",
    "tests/quantile/test_search.py::TestRankStatistic::test_sensitivity_by_brute_force",
    "tests/test_wiring.py::test_the_noise_that_is_drawn_is_the_noise_of_the_event",
)
mutant(
    "quantile.search:SharedCounts.new_questions",
    "place.bit_length()",
    "2 * place.bit_length()",
    "fewer counts are paid for than several levels may ask for",
    "tests/quantile/test_search.py::TestSharedCounts::test_no_more_counts_are_released_than_were_paid_for",
)
mutant(
    "quantile.exponential:exponential_quantile",
    "costs.astype(object)",
    "costs.astype(object) * 2",
    "the exponential mechanism draws at twice its rate",
    "tests/quantile/test_exponential.py::test_ends_are_drawn_by_their_distance_from_the_quantile",
)
mutant(
    "quantile.search:_right_endpoint_search",
    "asked.noise(step, left, right, noise)",
    "asked.noise(step, left, right, noise) // 2",
    "counts get half their noise",
    "tests/test_audit.py::test_audit_reaches_its_share_of_the_claim_and_never_exceeds_it[search-quick]",
)
mutant(
    "quantile.release_level:_Search.miss_bound",
    "max(self._bounds(level, offset, range(self._count)))",
    "self._bounds(level, offset, range(self._count))[0]",
    "a released size is bounded at its low end, where the offset that is needed is the smallest",
    "tests/quantile/test_release_level.py::test_noisy_size_is_at_least_every_possible_size",
    "tests/quantile/test_release_level.py::test_the_low_end_of_the_size_is_not_the_worst",
)
mutant(
    "quantile.release_level:NoisySize.rank_deviation",
    "swing * self.size_noise",
    "0.0",
    "the noise of the released size is left out of what one release covers",
    "tests/quantile/test_release_level.py::test_noisy_size_is_at_least_every_possible_size",
)
# ---- release

mutant(
    "pipeline.release:_Part.__call__",
    "(self.low <= drawn) & (drawn < self.high)",
    "(self.low <= drawn) & (drawn < self.high) | (self.high == 1.0) & (np.arange(len(drawn)) % 50 == 0)",
    "two percent of the held-out rows are trained on",
    "tests/test_wiring.py::test_the_two_parts_share_no_record",
)
mutant(
    "pipeline.release:_parts",
    "(0.0, fraction)",
    "(0.0, 1.0)",
    "all records are scored although a part was held out",
    "tests/test_wiring.py::test_the_two_parts_share_no_record",
)
mutant(
    "pipeline.release:_parts",
    "(0.0, fraction)",
    "(0.0, held_out)",
    "the evaluation part also calibrates",
    "tests/test_self_evaluation.py::test_three_parts_share_no_person_and_have_their_shares",
)
mutant(
    "pipeline.release:_Part.__call__",
    "drawn < self.high",
    "drawn < self.high + self.low",
    "the evaluation part of a source also trains or calibrates",
    "tests/test_self_evaluation.py::test_three_parts_share_no_person_and_have_their_shares",
)
mutant(
    "privacy.events:secret_parts",
    "fraction / together",
    "fraction",
    "the share of the third part is that of all records",
    "tests/privacy/test_three_parts.py::test_the_mixture_of_three_is_that_of_all_outcomes",
)
mutant(
    "pipeline.release:_scores_by_group",
    "BlockCounts(scored, group)",
    "BlockCounts(scored)",
    "every group counts all records",
    "tests/test_wiring.py::test_each_group_counts_its_own_records_only",
)
mutant(
    "release:release",
    "request.task.score_range",
    "(0.0, float(np.max(scores)) + 1e-09)",
    "the range of the scores comes from the records",
    "tests/test_wiring.py::test_the_score_range_is_public",
)
mutant(
    "release:release",
    "reservation.commit(ledger)",
    "reservation.commit(Ledger())",
    "a fit commits nothing",
    "tests/test_budget.py::test_fit_reserves_exactly_what_it_commits",
)
mutant(
    "release:release",
    "planned.ledger(strategy.spent)",
    "strategy.spent",
    "a fit reserves its training only",
    "tests/test_budget.py::test_fit_reserves_exactly_what_it_commits",
)
mutant(
    "release:release",
    "child_seeds(random_state, 3)",
    "(random_state,) * 3",
    "training, split and search share a seed",
    "tests/test_wiring.py::test_training_assignment_and_search_are_seeded_apart",
)
mutant(
    "release:release",
    "request.task.classes_found",
    "False",
    "found classes are certified",
    "tests/test_found_classes.py::test_found_classes_are_never_certified",
)
mutant(
    "pipeline.release:_scores_by_group",
    "unit_of_blocks(records).by_person",
    "False",
    "every record of a person is counted in the search",
    "tests/test_person_fits.py::test_split_parts_and_groups_draw_persons",
)
mutant(
    "release:release",
    "(rule, spent.event) != (planned.rule, strategy.spent.event)",
    "rule != planned.rule",
    "training that cost more than was planned leaves too much to the search",
    "tests/test_data_path.py::test_training_that_cost_more_than_planned_is_planned_again",
)
mutant(
    "release:_for_rows",
    "request.unit.group > 1",
    "request.unit.group < 1",
    "a budget store charges one row where a person with several is promised something",
    "tests/test_person_fits.py::test_without_ids_a_budget_store_is_refused",
)
mutant(
    "release:_Part.__call__",
    "(self.low <= drawn) & (drawn < self.high)",
    "drawn >= 0.0",
    "held-out records of a source are trained on",
    "tests/sources/test_source_fits.py::test_held_out_records_of_blocks_are_a_coin_each",
)
# ---- scoring

mutant(
    "scoring:Scoring.scores",
    "persons",
    "None",
    "the correction of a person fit removes one row",
    "tests/test_person_fits.py::test_corrected_scores_remove_the_whole_person",
)
mutant(
    "scoring:Scoring.scores",
    "block.with_steps(*steps)",
    "block",
    "records are scored before preprocessing",
    "tests/test_data_path.py::test_records_are_preprocessed_once_to_train_and_once_to_score",
)
mutant(
    "scoring:_Look.__call__",
    "block.targets[is_member(block.groups, self.group)]",
    "block.targets",
    "in blocks every group counts all records",
    "tests/sources/test_source_fits.py::test_every_source_gives_the_fit_of_an_array",
)
# ---- searches

mutant(
    "searches:SearchPlan.ledger",
    "compose(*self.events)",
    "self.events[0]",
    "split, several levels: only the first is in the ledger",
    "tests/test_wiring.py::test_a_split_ledger_holds_every_level",
)
mutant(
    "searches:SearchPlan.ledger",
    "zip(self.events, notes, strict=True)",
    "zip(self.events[:1], notes[:1], strict=True)",
    "several levels: only the first is in the ledger",
    "tests/test_calibration.py::TestBudget::test_several_levels_and_groups_share_it",
)
mutant(
    "searches:make_rule",
    "has_groups or part < 1 or (not counted)",
    "part < 1 or not counted",
    "groups of unknown size are taken to be as large as planned",
    "tests/test_wiring.py::test_groups_are_corrected_for_any_size",
)
mutant(
    "searches:SearchPlan.ledger",
    "rule.guarantee.held_out and spent.entries and (notes or shares is not None)",
    "spent.entries and notes",
    "records used twice count once",
    "tests/test_wiring.py::test_records_used_twice_count_twice",
)
mutant(
    "searches:row_budget",
    "spent <= budget.epsilon",
    "spent",
    "what k rows cost is computed and not looked at",
    "tests/test_person_fits.py::test_sampled_training_without_ids_stays_within_the_budget",
)
# ---- sources

mutant(
    "sources.persons:join_persons",
    "senders * count",
    "senders * count + 1",
    "rows of a person miss the block of their person",
    "tests/sources/test_person_blocks.py::test_senders_who_deal_in_turns_make_the_blocks_of_one_table",
)
# ---- strategy

mutant(
    "strategy:FitPlan.train",
    "train_on(self.mechanism, source, random_state=random_state, n_records=self.n_training)",
    "train_on(self.mechanism, source, random_state=random_state, n_records=None)",
    "training divides by the true number of records",
    "tests/test_wiring.py::test_a_mechanism_sees_clipped_targets_and_the_public_number_of_records",
)
mutant(
    "strategy:FitPlan.enter",
    "ledger.then(self.model.ledger)",
    "ledger",
    "a foreign model is free",
    "tests/test_conformal.py::TestPrivateModel::test_on_its_own_records",
)
mutant(
    "pipeline.own_mechanism:own_mechanism",
    "Preprocessed((PublicBounds(*bounds.pair),), found)",
    "found",
    "declared feature bounds do not reach an own mechanism",
    "tests/test_wiring.py::test_declared_bounds_reach_an_own_mechanism",
)
mutant(
    "strategy:FitPlan.check_source",
    "require_sources(self.mechanism)",
    "pass",
    "a mechanism that needs an array is found out after the budget is reserved",
    "tests/sources/test_source_fits.py::test_what_blocks_cannot_do_is_refused",
)
# ---- tasks

mutant(
    "tasks:Regression.fine_near",
    "0.0",
    "high",
    "thresholds of residuals are distinguished where none lie",
    "tests/test_wiring.py::test_predictions_stay_in_the_declared_range_and_thresholds_are_fine_where_scores_crowd",
)
mutant(
    "tasks:Classification.scores",
    "np.asarray(np.maximum(scores, self._of_own_label(softmax(outputs), targets)))",
    "scores",
    "the correction is computed and not used",
    "tests/test_wiring.py::test_corrected_scores_are_the_ones_that_count",
)
mutant(
    "tasks:Regression.training_targets",
    "np.clip(to_scale(targets, self.y_scale), *self.scaled_bounds)",
    "np.asarray(targets)",
    "targets beyond their bounds reach the mechanism",
    "tests/test_wiring.py::test_a_mechanism_sees_clipped_targets_and_the_public_number_of_records",
)
mutant(
    "tasks:Regression.scores",
    "np.asarray(np.maximum(scores, self._of_targets(targets, outputs)))",
    "scores",
    "the correction of a regression is computed and not used",
    "tests/test_wiring.py::test_corrected_residuals_are_the_ones_that_count",
)
# ---- training

mutant(
    "training.descent:GridNoise.__init__",
    "1 / GRID",
    "0.98 / GRID",
    "gradient noise is drawn too small",
    "tests/training/test_dpsgd.py::test_each_step_adds_the_noise_of_the_event",
)
mutant(
    "training.dpsgd:Setup._constants",
    "self.noise",
    "0.98 * self.noise",
    "the engine is handed less noise than the event says",
    "tests/training/test_dpsgd.py::test_each_step_adds_the_noise_of_the_event",
)
mutant(
    "training.dpsgd:Setup.normaliser",
    "self.n_records",
    "len(self.records.rows)",
    "the true number of records divides",
    "tests/training/test_dpsgd.py::test_normaliser_is_public",
)
mutant(
    "training.dpsgd:DPSGD.releases",
    "self.steps",
    "self.steps - 1",
    "the event leaves out a step",
    "tests/training/test_dpsgd.py::test_event_is_known_before_the_data",
)
mutant(
    "training.dpsgd:Setup.batches",
    "rate == 1",
    "rate >= 0.5",
    "full batches where sampled ones are paid for",
    "tests/training/test_dpsgd.py::test_poisson_inclusion",
    "tests/training/test_dpsgd.py::test_batches_are_sampled_at_the_rate_of_the_event",
)
mutant(
    "training.gradients:ClippedGradient._clip",
    "np.maximum(factors, self._lowered, out=factors)",
    "np.maximum(factors, 0.98 * self._lowered, out=factors)",
    "short gradients are stretched",
    "tests/training/test_dpsgd.py::test_clipped_sum_equals_per_sample_gradients",
)
mutant(
    "training.gradients:ClippedGradient.add",
    "v.factors_down",
    "1.0",
    "nothing is clipped where the factors go to the inputs",
    "tests/training/test_dpsgd.py::test_clipped_sum_equals_per_sample_gradients",
)
mutant(
    "training.dpsgd:DPSGD.stability",
    "steepest * (1 - 1e-12)",
    "0.5 * steepest",
    "a stability bound where clipping bends the loss",
    "tests/training/test_coupling.py::test_no_bound_is_claimed_outside_the_proof",
)
mutant(
    "training.engine.gaussian_release:<module>",
    "_RECORDS_PER_PART = 1 << 10",
    "_RECORDS_PER_PART = 1 << 28",
    "the rounding of released sums grows with the records",
    "tests/training/test_sums.py::test_a_term_goes_through_few_additions",
)
mutant(
    "training.preprocess:Preprocessed.event",
    "compose(*known)",
    "known[-1]",
    "preprocessing is free",
    "tests/training/test_releases.py::test_every_private_part_is_in_the_event",
)
mutant(
    "training.steps:PrivateCentring.release",
    "gaussian_release(total, noise, rng, n_records)",
    "total",
    "centring with the exact mean",
    "tests/training/test_releases.py::test_nothing_of_the_records_passes_a_step_but_through_its_release",
)
mutant(
    "training.steps:PrivateStandardize.release",
    "mean, square = gaussian_release(total, noise, rng, n) / n",
    "mean, square = gaussian_release(total, noise, rng, n) / n\nsquare = total[1] / n",
    "standardising with the exact scale",
    "tests/training/test_releases.py::test_nothing_of_the_records_passes_a_step_but_through_its_release",
)
mutant(
    "training.preprocess:Preprocessed._train",
    "n",
    "nominal_count(source, None)[0]",
    "the true number of records divides the released sums",
    "tests/training/test_releases.py::test_the_public_number_of_records_reaches_every_step",
)
mutant(
    "training.preprocess:Preprocessed.calibrated",
    "compose(fixed, paid_event(tunable.with_noise(z)))",
    "paid_event(tunable.with_noise(z))",
    "the mechanism's noise forgets what the steps spend",
    "tests/training/test_preprocess.py::test_calibrated_meets_the_budget_and_nearly_uses_it",
)
mutant(
    "training.preprocess:Preprocessed._train",
    "source = source.map(methodcaller('with_steps', transforms[-1].apply))",
    "source.map(methodcaller('with_steps', transforms[-1].apply))",
    "training does not see the preprocessed rows",
    "tests/training/test_releases.py::test_training_sees_what_prediction_sees",
)
mutant(
    "training.preprocess:Preprocessed._train",
    "stream_seed(run.random_state, PREPROCESSING)",
    "run.random_state",
    "steps and mechanism share a seeded stream",
    "tests/training/test_preprocess.py::test_steps_and_mechanism_do_not_share_a_seeded_stream",
)
mutant(
    "training.private_target:PrivateTarget.event",
    "compose(gaussian_event(self.noise_multiplier), inner)",
    "inner",
    "the release of the target's scale is in no event",
    "tests/training/test_releases.py::test_every_private_part_is_in_the_event",
)
mutant(
    "training.private_target:PrivateTarget._train",
    "inner.event",
    "paid_event(self.mechanism)",
    "a wrapper reports the plan and not what was spent",
    "tests/training/test_recipe.py::test_private_target_reports_what_its_mechanism_did_spend",
)
mutant(
    "training.private_target:PrivateTarget._train",
    "mean, square = gaussian_release(total, noise, rng, n) / n",
    "mean, square = gaussian_release(total, noise, rng, n) / n\nsquare = source.sum(self._block_moments)[1] / n",
    "the target's scale is exact",
    "tests/training/test_releases.py::test_nothing_of_the_records_passes_a_mechanism_but_through_its_release",
)
mutant(
    "training.private_target:PrivateTarget._train",
    "mean, square = gaussian_release(total, noise, rng, n) / n",
    "mean, square = gaussian_release(total, noise, rng, n) / n\nmean = source.sum(self._block_moments)[0] / n",
    "the target's mean is exact",
    "tests/training/test_releases.py::test_nothing_of_the_records_passes_a_mechanism_but_through_its_release",
)
mutant(
    "training.private_target:calibrate_beside",
    "spent <= epsilon",
    "spent <= 1.02 * epsilon",
    "the target's share may push training over its budget",
    "tests/training/test_recipe.py::test_private_target_stays_within_the_budget",
)
mutant(
    "training.perturbation:ObjectivePerturbation.event",
    "math.hypot(mu, 1 / (TRACE_NOISE * noise))",
    "mu",
    "the trace of output noise is in no event",
    "tests/training/test_releases.py::test_objective_perturbation_draws_the_scales_of_its_event",
)
mutant(
    "training.perturbation:ObjectivePerturbation._privacy_loss",
    "math.log1p(expansion)",
    "0.0",
    "the Jacobian is free",
    "tests/training/test_perturbation.py::test_exact_divergences_stay_below_the_dominating_gaussian",
    "tests/training/test_releases.py::test_the_jacobian_is_paid_for",
)
mutant(
    "training.perturbation:ObjectivePerturbation._privacy_loss",
    "self.loss == 'logistic' or (self.loss == 'cross_entropy' and self._outputs == 2)",
    "rank == 1",
    "a regression is accounted for like two classes",
    "tests/training/test_releases.py::test_the_jacobian_is_paid_for",
)
mutant(
    "training.perturbation:_Perturbation._prepare",
    "bounded_targets(y, self.y_bounds)",
    "np.asarray(y, dtype=float)",
    "targets beyond their bounds",
    "tests/training/test_perturbation.py::test_rows_and_targets_are_clipped_in_training_and_prediction",
)
mutant(
    "training.summary:SufficientStatistics._train",
    "gaussian_release(cross, self.cross_noise, rng)",
    "np.array(cross)",
    "the cross moments are exact",
    "tests/training/test_releases.py::test_nothing_of_the_records_passes_a_mechanism_but_through_its_release",
)
mutant(
    "training.summary:SufficientStatistics._train",
    "self._release_gram(gram, rng)",
    "gram",
    "the Gram matrix is exact",
    "tests/training/test_releases.py::test_nothing_of_the_records_passes_a_mechanism_but_through_its_release",
)
mutant(
    "training.summary:SufficientStatistics._train",
    "n * self.row_bound",
    "len(raw) * self.row_bound",
    "the true number of records bounds the cross moments",
    "tests/training/test_releases.py::test_nothing_of_the_records_passes_a_mechanism_but_through_its_release",
)
mutant(
    "training.descent:Descent.step",
    "noisy * self.normaliser",
    "total",
    "an audit of training hears the sum before its noise",
    "tests/test_audit.py::test_training_tells_the_sums_that_made_its_parameters",
)
mutant(
    "training.torch.release:_ProcessorRelease.__call__",
    "round_to_grid(total.view(-1).numpy(), drawn[start:stop], self._spacing)",
    "round_to_grid(total.view(-1).numpy(), drawn[start:stop] * (total.ndim > 1), self._spacing)",
    "torch biases get no noise",
    "tests/training/test_opacus.py::test_the_noise_of_the_event_reaches_every_sum",
)
mutant(
    "training.torch.release:_ProcessorRelease.__call__",
    "start = stop",
    "start = 0",
    "the parameters of a torch module share their noise",
    "tests/training/test_opacus.py::test_parameters_have_noise_of_their_own",
)
mutant(
    "privacy.normals:NormalNumbers._draw_rest",
    "(piece < _RECTANGLES) & (height < np.exp(-0.5 * size * size))",
    "piece < _RECTANGLES",
    "noise lies above the normal curve",
    "tests/privacy/test_normals.py::test_what_is_no_rectangle_has_the_law_of_the_rest",
)
mutant(
    "privacy.normals:NormalNumbers._draw_rest",
    "cover.widths[0] + over",
    "cover.widths[0]",
    "noise has no tail",
    "tests/privacy/test_normals.py::test_the_tail_goes_on",
)
mutant(
    "privacy.normals:NormalNumbers.fill",
    "np.copysign(self._draw_rest(rest.size), out[rest])",
    "self._draw_rest(rest.size)",
    "the tail of the noise has one side",
    "tests/privacy/test_normals.py::test_the_tail_goes_on",
)
mutant(
    "privacy.normals:NormalNumbers._fill_rectangles",
    "numbers *= factor",
    "numbers *= self._factors[0]",
    "noise is uniform",
    "tests/privacy/test_normals.py::test_the_law_is_normal",
)
mutant(
    "training.engine.loop:round_to_grid",
    "np.rint(part, out=part)",
    "None",
    "a torch module shows the low bits of its sums",
    "tests/training/test_opacus.py::test_noise_has_the_standard_deviation_of_the_event",
)
mutant(
    "training.torch.trainer:OpacusTraining._prepare",
    "self._public_run(self.sampling_rate * n, tried)",
    "self._public_run(self.sampling_rate * len(blocks_in_memory(source)[0]), tried)",
    "torch divides by the true number of records",
    "tests/training/test_opacus.py::test_every_record_is_clipped_and_the_normaliser_is_public",
)
mutant(
    "training.opacus:add_clipped",
    "torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(r, dim=1) for r, _ in used]), dim=0)",
    "torch.amax(torch.stack([torch.linalg.vector_norm(r, dim=1) for r, _ in used]), dim=0)",
    "torch clips each layer on its own",
    "tests/training/test_opacus.py::test_one_record_moves_the_sum_of_all_layers_by_at_most_the_clip_norm",
)
mutant(
    "training.opacus:OpacusTraining.releases",
    "self.steps",
    "1",
    "torch training costs one step",
    "tests/training/test_opacus.py::test_the_noise_of_the_event_reaches_every_sum",
)
mutant(
    "training.opacus:OpacusTraining.batches",
    "self.sampling_rate == 1",
    "self.sampling_rate >= 0.2",
    "torch trains on everybody and pays for samples",
    "tests/training/test_opacus.py::test_batches_are_sampled_at_the_rate_of_the_event",
)
mutant(
    "training.gradients:ClippedGradient._clip",
    "factors[:len(weights)] *= weights",
    "factors[:len(weights)] *= 1.0",
    "clipped gradients forget the weight",
    "tests/training/test_persons.py::test_a_person_moves_every_private_sum_by_one_sensitivity",
)
mutant(
    "training.descent:BatchSums._gather",
    "records.owners.weights_of(index)",
    "np.ones(m)",
    "sampled batches forget the weight",
    "tests/training/test_persons.py::test_repeating_a_persons_only_row_changes_nothing",
)
mutant(
    "training.descent:BatchSums.clipped",
    "records.owners.rows_of(persons)",
    "persons",
    "a batch of persons is read as a batch of rows",
    "tests/training/test_persons.py::test_repeating_a_persons_only_row_changes_nothing",
)
mutant(
    "training.private_target:PrivateTarget._block_moments",
    "self.moments(block.targets, block.weights)",
    "self.moments(block.targets)",
    "the target's scale drops the weights",
    "tests/training/test_persons.py::test_repeating_a_persons_only_row_changes_nothing",
)
mutant(
    "training.summary:SufficientStatistics._train",
    "self.moments(raw, block.targets, units.weights)",
    "self.moments(raw, block.targets)",
    "sufficient statistics drop the weights",
    "tests/training/test_persons.py::test_repeating_a_persons_only_row_changes_nothing",
)
mutant(
    "training.torch.batch_sums:Engine.check",
    "check_unchanged(self.start, self._state())",
    "None",
    "buffers that training changed are released",
    "tests/training/test_torch_modules.py::test_buffers_that_change_are_refused_on_made_up_rows_and_after_training",
)
mutant(
    "_base.used_names:_names",
    "isinstance(constant, types.CodeType)",
    "False",
    "globals that a comprehension of the caller uses are not compared",
    "tests/test_used_names.py::test_a_function_that_stores_rows_by_names_in_its_code_is_refused",
)
mutant(
    "_base.used_names:used_values",
    "isinstance(value, types.ModuleType)",
    "False",
    "attributes of the caller's modules are not compared",
    "tests/test_used_names.py::test_a_function_that_stores_rows_by_names_in_its_code_is_refused",
)
mutant(
    "training.torch.modules:gradient_rows",
    "torch.autograd.grad(summed_losses(losses, module(rows), target), trained, allow_unused=True)",
    "summed_losses(losses, module(rows), target).backward()",
    "gradients of the records stay on the parameters of the caller's loss",
    "tests/training/test_torch_losses.py::test_nothing_of_a_record_stays_on_the_callers_objects",
)
mutant(
    "training.torch.batch_sums:Engine._state",
    "module | {f'.<loss>{path}': digest for path, digest in state_digest(self.run.losses).items()}",
    "module",
    "a loss that stores something of the records is not refused",
    "tests/training/test_torch_losses.py::test_a_loss_whose_memory_starts_on_the_records_is_refused",
)
mutant(
    "training.torch.trainer:OpacusTraining._losses",
    "copy_if_possible(self.loss)",
    "self.loss",
    "records go through the caller's own loss",
    "tests/training/test_torch_losses.py::test_a_loss_whose_memory_starts_on_the_records_is_refused",
)
mutant(
    "training.torch.trainer:OpacusTraining._run_dry",
    "dry_run(module, input_shape, target, self._losses, device=self.device, "
    "n_outputs=None if classes is None else len(classes), most_rows=self._at_once)",
    "found[2] if found else Tried(2, GradientPlan(), None)",
    "a module is first tried on the records",
    "tests/training/test_torch_modules.py::test_training_tries_a_module_on_made_up_records_first",
)
mutant(
    "training.opacus:OpacusTraining._descend",
    "self.clip_norm / run.batch",
    "1 / run.batch",
    "torch steps forget the clip norm",
    "tests/training/test_opacus.py::test_same_updates_as_the_numpy_engine",
)
mutant(
    "training.torch_model:TorchModel.restore",
    "copy.deepcopy(module)",
    "module",
    "loading writes into the caller's module",
    "tests/training/test_torch_files.py::test_a_module_comes_back_in_a_fresh_copy_of_its_architecture",
)
mutant(
    "training.private_bounds:PrivateBounds._train",
    "compose(own, inner.event)",
    "inner.event",
    "what training reports leaves the bounds out",
    "tests/training/test_private_bounds.py::test_the_event_is_that_of_the_noise_that_is_drawn",
)
mutant(
    "training.private_bounds:PrivateBounds.release",
    "drawn",
    "0 * drawn",
    "bounds are found without noise",
    "tests/training/test_private_bounds.py::test_noise_reaches_the_counts",
)
mutant(
    "training.preprocessing.private_bounds:PrivateBounds.release",
    "return (np.maximum(low, smallest), np.minimum(high, largest))",
    "return (low, high)",
    "a found range overflows in units: the fit fails after the budget is spent",
    "tests/test_scales.py::test_every_range_that_can_be_found_on_a_scale_is_usable",
)
mutant(
    "training.preprocessing.private_bounds:PrivateBounds._find_reachable_cells",
    "(low < largest) & (high > smallest)",
    "True",
    "noise finds a range that no target can reach",
    "tests/test_scales.py::test_cells_that_no_float_reaches_are_never_found",
)
mutant(
    "training.preprocessing.private_bounds:PrivateBounds.counts",
    "c[c > scale_limits(scale)[0]]",
    "c",
    "zeros stretch a range of logarithms to the smallest float",
    "tests/test_scales.py::test_targets_outside_the_scale_do_not_widen_the_range",
    "tests/test_scales.py::test_features_are_found_in_cells_of_their_own_scale",
)
mutant(
    "pipeline.plan:_mechanism",
    "request.feature_scales if columns else None",
    "None",
    "zeros stretch the found bounds of a feature on the scale of the logarithm to the smallest float",
    "tests/test_scales.py::test_zeros_do_not_widen_the_bounds_of_a_logarithm",
)
mutant(
    "training.mechanism:find_dry_run",
    "check_width(mechanism, math.prod(input_shape))",
    "None",
    "rows of another width are noticed after the budget is spent",
    "tests/training/test_private_bounds.py::test_rows_of_another_width_are_refused_before_anything_is_spent",
)
mutant(
    "tasks:Regression.scaled_bounds",
    "self.found_range is not None",
    "False",
    "a found range goes to its scale and back by way of units",
    "tests/test_scales.py::test_every_range_that_can_be_found_on_a_scale_is_usable",
)
mutant(
    "training.private_bounds:PrivateBounds.bounds_event",
    "self._n_columns",
    "1",
    "the counts of one column are paid for",
    "tests/training/test_private_bounds.py::test_the_event_is_that_of_the_noise_that_is_drawn",
)
mutant(
    "training.objective_privacy:ObjectiveLoss._atoms",
    "pull * squared + np.where(edges[:, None] >= 0, push, np.maximum(pull**2 * squared / 2, push))",
    "np.where(edges[:, None] >= 0, push, np.maximum(pull**2 * squared / 2, push))",
    "the squared term of objective perturbation is free",
    "tests/test_promised_numbers.py::test_the_profile_of_objective_perturbation_is_the_integral_of_its_loss",
)
mutant(
    "training.perturbation:OutputPerturbation._train",
    "tolerance / data.n_records",
    "0.0",
    "the stability bound forgets the tolerance of the solver",
    "tests/test_promised_numbers.py::test_a_trained_model_pays_for_its_solver",
)
mutant(
    "training.perturbation:ObjectivePerturbation._train",
    "tolerance / data.n_records",
    "0.0",
    "the stability bound of objective perturbation forgets the tolerance of the solver",
    "tests/test_promised_numbers.py::test_a_trained_model_pays_for_its_solver",
)

# ---- the recipe on tables

mutant(
    "training.recalibration:Recalibrated._recalibrate",
    "require_noise(self.noise_multiplier) * SENSITIVITY",
    "require_noise(self.noise_multiplier)",
    "the noise of a step is that of sensitivity one",
    "tests/training/test_recalibration.py::test_the_event_is_that_of_every_noisy_sum",
)
mutant(
    "training.recalibration:Recalibrated.own_event",
    "self.steps",
    "1",
    "the event has one of several noisy sums",
    "tests/training/test_recalibration.py::test_the_event_is_that_of_every_noisy_sum",
)
mutant(
    "training.recalibration:Recalibrated._train",
    "compose(trained.event, own)",
    "trained.event",
    "recalibration is not paid for",
    "tests/training/test_recalibration.py::test_the_event_is_that_of_every_noisy_sum",
)
mutant(
    "training.recalibration:RecordSums.__call__",
    "block.weights is None",
    "True",
    "every row of a person counts in full",
    "tests/training/test_recalibration.py::test_neighbors_differ_by_the_sensitivity_at_most",
)
mutant(
    "training.recalibration:record_sums",
    "np.maximum(u, -_CUT)",
    "u",
    "confident errors pull without a bound on their instrument",
    "tests/training/test_recalibration.py::test_the_sums_are_the_equations_and_their_derivatives",
)
mutant(
    "training.recalibration:record_sums",
    "curved /= np.maximum(1.0, np.linalg.norm(curved, axis=1, keepdims=True))",
    "pass",
    "the curvature of one record is not bounded",
    "tests/training/test_recalibration.py::test_the_curvature_of_many_classes_is_shortened",
)
mutant(
    "training.quantile_transform:QuantileTransform.n_releases",
    "len(self._counted) * len(self.branching)",
    "len(self._counted)",
    "the counts of one level are paid for, those of the others are not",
    "tests/training/test_quantile_transform.py::test_the_event_is_that_of_every_count_a_record_changes",
)
mutant(
    "training.quantile_transform:QuantileTransform.release",
    "zip(noisy, self._counted, strict=True)",
    "zip(noisy, range(self.n_features), strict=False)",
    "the released function of one column scales another one",
    "tests/training/test_quantile_transform.py::test_only_the_named_columns_are_counted",
)
mutant(
    "training.private_bounds:PrivateBounds.counts",
    "[rows[:, place] for place in self._features]",
    "[rows[:, place] for place in range(len(self._features))]",
    "bounds are found from the first columns instead of the named ones",
    "tests/test_feature_bounds.py::test_only_undeclared_bounds_are_found_and_paid_for",
)
mutant(
    "pipeline.plan:_mechanism",
    "columns if 0 < len(columns) < request.n_features else None",
    "None",
    "declared bounds are found again and replaced",
    "tests/test_feature_bounds.py::test_only_undeclared_bounds_are_found_and_paid_for",
)
mutant(
    "training.quantile_transform:QuantileTransform.release",
    "counts * noise.scale + drawn",
    "counts * noise.scale",
    "the counts of the columns are released without noise",
    "tests/training/test_quantile_transform.py::test_what_is_released_is_noisy",
)
mutant(
    "training.quantile_transform:QuantileTransform.fit_source",
    "unit_of_blocks(source).by_person",
    "False",
    "every row of a person is counted",
    "tests/training/test_quantile_transform.py::test_a_person_counts_as_one_record",
)
mutant(
    "training.preprocessing.random_features:RandomFeatures.fit",
    "np.random.Generator(np.random.PCG64(self.seed))",
    "rng",
    "the public directions come from the generator of private noise",
    "tests/training/test_random_features.py::test_directions_follow_from_the_seed_alone",
)
mutant(
    "training.preprocessing.random_features:RandomFeatureRows.apply",
    "self.directions.scale_rows(X, self.bound, unit=False)",
    "self.directions.scale_rows(X, self.bound, unit=True)",
    "the length of a row is lost",
    "tests/training/test_random_features.py::test_rows_are_shortened_and_kept_and_bent_functions_are_added",
)
mutant(
    "training.preprocessing.preprocess:Preprocessed.stages",
    "(*self._step_stages, *stages_of(self.mechanism))",
    "stages_of(self.mechanism)",
    "the plan of a fit leaves out what its preprocessing steps cost",
    "tests/training/test_preprocess.py::test_every_private_step_has_its_entry_in_a_ledger",
)
mutant(
    "training.preprocessing.preprocess:Preprocessed._train",
    "(*self._step_stages, *stages_of_trained(inner))",
    "stages_of_trained(inner)",
    "the ledger of a fit leaves out what its preprocessing steps cost",
    "tests/training/test_preprocess.py::test_every_private_step_has_its_entry_in_a_ledger",
)
mutant(
    "training.preprocessing.private_target:PrivateTarget._train",
    "((self.stage, own), *stages_of_trained(inner))",
    "stages_of_trained(inner)",
    "the ledger of a fit leaves out what the scale of its target costs",
    "tests/test_wiring.py::test_the_ledger_of_a_recipe_holds_all_its_releases",
)
mutant(
    "privacy.entries:Entry.components_of",
    "zip(names, _events_of(event), strict=True)",
    "zip(names, reversed(_events_of(event)))",
    "a component of training is shown with the noise of another one",
    "tests/privacy/test_ledger.py::test_what_a_part_consists_of_has_names_and_changes_no_number",
)
mutant(
    "training.preprocessing.preprocess:Preprocessed._shape_after",
    "_check_width(step, step.input_width, width, before, adding)",
    "None",
    "a step for another number of columns fails after the budget is reserved",
    "tests/training/test_preprocess.py::test_a_step_for_another_width_is_refused_before_anything_is_spent",
)
mutant(
    "pipeline.own_mechanism:_separate_steps",
    "ScaledTarget(DPSGD(loss='huber'), request.task.scaled_bounds)",
    "ScaledTarget(DPSGD(loss='huber'), request.task.y_bounds)",
    "a target on its scale is clipped by bounds in units",
    "tests/training/test_preprocess.py::test_steps_alone_train_a_regression_on_the_scale_of_its_target",
)
mutant(
    "training.preprocessing.preprocess:Preprocessed.stability",
    "math.prod(self._shape_after((n_features,)))",
    "n_features",
    "the shift bound of a mechanism is that of fewer columns than it sees",
    "tests/training/test_random_features.py::test_a_shift_bound_counts_the_added_columns",
)
mutant(
    "training.recipe:_linear_model",
    "step_sum[0] / length",
    "step_sum[0]",
    "the noise in an output grows with the width of a table",
    "tests/training/test_random_features.py::test_weight_and_steps_follow_from_the_signal_for_each_weight",
    "tests/training/test_recipe.py::test_many_classes_get_a_linear_model_until_each_has_a_signal",
)
mutant(
    "training.recipe:_weak_regression",
    "signal / inputs / _BENT_SIGNAL",
    "signal / _BENT_SIGNAL",
    "a wide table gets random features that noise hides",
    "tests/training/test_random_features.py::test_a_wider_table_needs_more_signal_for_random_features",
)
mutant(
    "tasks:Regression._of_targets",
    "to_scale(targets, self.y_scale)",
    "targets",
    "scores use units where the model uses the scale",
    "tests/test_scales.py::test_a_target_is_in_its_interval_exactly_if_its_score_is_within_the_threshold",
)

# ---- units of privacy, the budget store, small parts, torch modules
mutant(
    "training.torch.layer_terms:ClipRule.factors",
    "torch.maximum(longest, size / self.cancellation(terms))",
    "longest",
    "numbers of any size may cancel inside a record",
    "tests/training/test_torch_layers.py::test_places_that_cancel_add_at_most_one_clip_norm_each",
)
mutant(
    "training.torch.layer_terms:_ghost_norms",
    "norms + (roundings + places * places + 16) * ROUNDING * sizes",
    "norms",
    "a ghost norm loses what its rounding hides",
    "tests/training/test_torch_layers.py::test_ghost_norms_are_not_below_the_true_ones",
)
mutant(
    "training.torch.layer_terms:ClipRule.factors",
    "torch.stack(norms).sum(0).sqrt().clamp(min=self.clip_norm)",
    "torch.stack(norms).amax(0).sqrt().clamp(min=self.clip_norm)",
    "layers of a torch module are clipped each on its own",
    "tests/training/test_torch_layers.py::test_norms_and_sums_are_those_of_single_gradients",
)
mutant(
    "training.torch.layer_terms:_kept",
    "counted is None",
    "True",
    "a record that is not finite spoils a sum",
    "tests/training/test_torch_layers.py::test_a_record_that_is_not_finite_adds_nothing",
)
mutant(
    "training.torch.batch_sums:Engine._sum_parts",
    "factors[:len(part)]",
    "factors",
    "padding is added as records",
    "tests/training/test_torch_layers.py::test_a_record_in_front_moves_a_sum_by_one_clip_norm_and_the_slack",
)
mutant(
    "training.torch.batch_sums:_GpuBlocks.sum",
    "self._weights.next[len(part):] = 0.0",
    "self._weights.next[len(part):] = 1.0",
    "padding is added as records on a GPU",
    "tests/training/test_torch_layers.py::test_padded_blocks_on_a_device_give_the_same_sums",
)
mutant(
    "training.torch.batch_sums:Engine._alike_blocks",
    "blocks.chunk > 1",
    "True",
    "records that are rounded by their place are summed without integers",
    "tests/training/test_torch_layers.py::test_modules_that_round_by_the_place_get_exact_sums",
)

mutant(
    "privacy.accounting.sampled_renyi:_infinite_series",
    "decreasing & (np.maximum(below, above) < total - _NEGLIGIBLE)[:, 1:]",
    "decreasing & (np.maximum(below, above) < total)[:, 1:]",
    "a series of Rényi divergences ends too early",
    "tests/privacy/test_sampled_renyi.py::test_divergences_are_those_of_dp_accounting",
)
mutant(
    "data.sources.dataset:DatasetSource._blocks",
    "any((row.shape != self._shape for row, _ in pairs))",
    "False",
    "items of another shape are taken for records",
    "tests/sources/test_datasets.py::test_what_is_no_data_set_of_pairs_is_refused_without_its_numbers",
)

mutant(
    "quantile.counted_size:counted_miss_bound",
    "misses = count_noise * worst_excess(needed / count_noise, check_count('steps', steps), graded=graded) / (sizes + 1)",
    "misses = count_noise * worst_excess(needed / count_noise, check_count('steps', steps), graded=graded) / (float(size.nominal_size) + 1)",
    "a gap in a small part counts as much as one in a large part",
    "tests/quantile/test_counted_size.py::test_the_offset_is_the_smallest_that_the_sum_allows",
)
mutant(
    "pipeline.search_plan:CalibrationRule.with_sharper_size",
    "self.has_released_size and self.counted and (self.part < 1)",
    "self.has_released_size and self.part < 1",
    "a declared number of records is taken for a counted one",
    "tests/quantile/test_counted_size.py::test_the_choice_is_by_public_numbers_and_small_parts_take_the_law",
)
mutant(
    "data.model_files:open_atomically",
    "with os.fdopen(handle, 'wb') as file:\n    yield file",
    "with os.fdopen(handle, 'wb') as file:\n    os.chmod(temporary, 420)\n    yield file",
    "predictions are readable by all, whatever the umask says",
    "tests/test_persistence.py::TestWriting::test_files_respect_the_umask_and_the_file_that_they_replace",
)
mutant(
    "privacy.rules:AdaptiveRule._filter_epsilon",
    "delta - self.slack",
    "delta",
    "the filter's slack is spent twice",
    "tests/test_budget.py::test_reserve_then_commit",
)
mutant(
    "privacy.rules:AdaptiveRule.charges",
    "max(charge.mu, instead.mu)",
    "instead.mu",
    "a run that stopped by what it saw gets the rest back",
    "tests/test_budget.py::test_slack_is_never_given_back_and_only_gaussian_commits_lower_a_charge",
)
mutant(
    "privacy.rules:AdaptiveRule.charges",
    "left - charge.slack",
    "left",
    "every share gets its part of the whole slack",
    "tests/test_budget.py::test_steps_with_a_delta_of_their_own_take_it_from_the_slack",
)
mutant(
    "privacy.rules:AdaptiveRule._is_whole",
    "len(shares) != 1",
    "not shares",
    "more shares fit beside one that took the whole total",
    "tests/test_budget.py::test_one_share_may_take_the_whole_total",
)
mutant(
    "privacy.rules:SequenceRule.require",
    "share.reserved.event != declared or share.counted.event != declared",
    "False",
    "a store with a declared sequence takes any other fit",
    "tests/test_budget.py::test_a_declared_sequence_adds_up_without_slack",
)
mutant(
    "privacy.adaptive:_dominating_mu.dominates",
    "chord",
    "0.97 * chord",
    "a share is charged less than its profile",
    "tests/privacy/test_adaptive.py::test_a_charge_dominates_a_secret_split_and_is_the_smallest_that_does",
)
mutant(
    "privacy.accounting.pld:_LossProfile.delta",
    "np.maximum(worst, 0.0) + self.short",
    "np.maximum(worst, 0.0)",
    "the rounding of Fourier transforms is not added to a delta",
    "tests/privacy/test_accounting.py::test_losses_are_not_below_the_exact_cost_at_tiny_deltas",
)
mutant(
    "baselines.threshold:PrivateThreshold._plan",
    "mechanism, found = _declare_labels(mechanism, y)",
    "found = False",
    "labels of the secret half are listed",
    "tests/test_baselines.py::test_labels_are_found_in_all_records_and_declared_found",
)
mutant(
    "training.torch.batch_sums:BatchSum._summed",
    "self.layers.generator(block.id, self.step)",
    "self.layers.generator(block.id)",
    "layers of a torch module draw the same in every step",
    "tests/training/test_torch_state.py::test_masks_do_not_follow_the_known_seed_and_the_generator_stays_where_it_was",
)
mutant(
    "training.torch.random_state:secret_draws",
    "torch.set_rng_state",
    "torch.manual_seed",
    "layers of a torch module draw from 32 secret bits",
    "tests/training/test_torch_state.py::test_masks_do_not_follow_the_known_seed_and_the_generator_stays_where_it_was",
    also=("_cpu_state(random_bytes(624 * 4))", "int.from_bytes(random_bytes(8), 'little')"),
)
mutant(
    "training.torch.model:TorchModel.outputs",
    "self.fresh_module()",
    "self.module",
    "rows go through the released torch module",
    "tests/training/test_torch_state.py::test_nothing_on_the_released_estimator_comes_from_rows_that_were_scored",
)
mutant(
    "training.torch.dry_run:dry_run",
    "trial.check_outputs()",
    "None",
    "mixing while records are scored is not looked for",
    "tests/training/test_torch_state.py::test_mixing_that_starts_in_larger_batches_is_refused_before_anything_is_spent",
)
mutant(
    "training.torch.dry_run:_Trial.check_gradients",
    "self.others",
    "()",
    "mixing is looked for on one kind of rows",
    "tests/training/test_torch_kinds.py::test_texts_that_are_mixed_are_refused",
)
mutant(
    "training.torch.trial_rows:TrialRows.find_rows",
    "self._tells_apart(found)",
    "True",
    "a module of words is tried on rows that are one word to it",
    "tests/training/test_torch_kinds.py::test_the_kinds_of_rows_are_those_that_a_module_takes_and_tells_apart",
)
mutant(
    "training.torch.dry_run:_Trial._check_rows",
    "require_own_sums(part, computed.trained, sizes[-1])",
    "None",
    "norms and sums of layers are used without a comparison",
    "tests/training/test_torch_layers.py::test_terms_that_are_not_those_of_single_records_are_not_used",
)
mutant(
    "training.torch.dry_run:_Trial._compare",
    "differences.add([gradient[None] for gradient in alone], gradients_of(whole, trained, [key]))",
    "None",
    "gradients are not compared with those of plain autograd",
    "tests/training/test_torch_kinds.py::test_a_value_that_is_used_again_after_a_change_in_place_is_no_other_function",
)
mutant(
    "training.torch.batch_sums:Engine.terms_of",
    "hide_messages(lambda: self.terms(self.run.losses, rows, target))",
    "self.terms(self.run.losses, rows, target)",
    "an error on the records shows their values",
    "tests/training/test_torch_modules.py::test_a_failure_on_the_records_tells_nothing_of_them",
)
mutant(
    "training.torch.model:TorchModel.outputs",
    "hold_in_evaluation(module.modules())",
    "None",
    "a forward pass may switch frozen layers to the statistics of the rows that are scored",
    "tests/training/test_torch_modules.py::test_frozen_parts_stay_in_evaluation_mode_when_forward_calls_train",
)
mutant(
    "estimators.prefit:Prefit.outputs_of_records",
    "copy_if_possible(self.answer)",
    "self.answer",
    "records go through the caller's own estimator",
    "tests/test_prefit.py::test_an_estimator_that_keeps_its_rows_is_released_without_them",
)
mutant(
    "data.sources.digests:SameBlocks.__call__",
    "self.digests.get(block.id) != digest(block, self.key)",
    "block.id not in self.digests",
    "a collection that shuffles at each reading is trained on and held out at once",
    "tests/sources/test_digests.py::test_a_collection_that_shuffles_at_each_computation_is_refused",
)
mutant(
    "estimators.base:PrivateConformal._release",
    "(*self._list_group_assumptions(), *((LIKELIHOOD_RATIO,) if self.likelihood_ratio is not None else ()), *list_training_assumptions(self.estimator, prefit=self.prefit), *list_record_assumptions(original), *self._list_uncopied_objects(), *request.task.score_assumptions, *outer.assumptions)",
    "(*self._list_group_assumptions(), *((LIKELIHOOD_RATIO,) if self.likelihood_ratio is not None else ()), *list_training_assumptions(self.estimator, prefit=self.prefit), *self._list_uncopied_objects(), *request.task.score_assumptions, *outer.assumptions)",
    "a release does not say that it trusts how the records came",
    "tests/test_trust.py::test_each_thing_that_is_trusted_is_on_record",
)
mutant(
    "data.person_ids:_read_array",
    "raise ValueError(_MISSING_IDS if np.isnan(ids).any() else _FLOAT_IDS)",
    "return _of_objects(ids.astype(np.int64).tolist())",
    "persons whose ids round to one number are one",
    "tests/test_person_ids.py::test_what_may_split_or_merge_persons_is_refused",
)
mutant(
    "data.person_ids:_decode_chunk",
    "chunk.null_count or pa.types.is_null(chunk.type)",
    "pa.types.is_null(chunk.type)",
    "Arrow's missing ids are one person",
    "tests/test_person_ids.py::test_what_may_split_or_merge_persons_is_refused",
)
mutant(
    "data.person_ids:_read_array",
    "kind == 'u' and bool((ids >= _LARGEST).any())",
    "False",
    "a large id becomes a negative one",
    "tests/test_person_ids.py::test_one_person_has_one_key_in_every_block",
)
mutant(
    "privacy.units:Unit.join",
    "self.by_person != other.by_person",
    "False",
    "steps about rows and steps about persons add up",
    "tests/privacy/test_units.py::test_rows_and_persons_with_ids_do_not_add_up",
)
mutant(
    "privacy.units:Unit.join",
    "unit.cap",
    "-unit.cap",
    "a composition covers the smaller number of rows",
    "tests/privacy/test_units.py::test_rows_add_up_to_the_largest_bound",
    also=("unit.limit is not None", "unit.limit is None"),
)
mutant(
    "privacy.units:unit_of_old_facts",
    "'n_persons' in facts and 'n_records' not in facts",
    "'n_persons' in facts",
    "an old ledger about rows and persons gets the smaller epsilon",
    "tests/privacy/test_units.py::test_a_ledger_of_version_1_gets_its_unit_when_it_is_read",
)
mutant(
    "privacy.ledger:Ledger._epsilon_alone",
    "epsilon_of(entry.event, delta, rows=self.rows)",
    "epsilon_of(entry.event, delta)",
    "a stage is printed with the price of one row",
    "tests/privacy/test_units.py::test_every_printed_promise_is_that_of_the_unit",
)
mutant(
    "privacy.ledger:Ledger.tradeoff",
    "self.rows",
    "1",
    "the trade-off curve is that of one row",
    "tests/privacy/test_units.py::test_every_number_is_that_of_the_unit",
)
mutant(
    "privacy.ledger:Ledger.delta",
    "self.rows == 1",
    "True",
    "delta is that of one row",
    "tests/privacy/test_units.py::test_every_number_is_that_of_the_unit",
)
mutant(
    "privacy.noise_search:as_event",
    "1",
    "10 ** 9",
    "noise is solved for one row of several",
    "tests/privacy/test_units.py::test_noise_is_not_solved_for_one_row_of_several",
)
mutant(
    "data.persons:require_unit",
    "about.group > unit.group",
    "False",
    "a model that protects five rows is calibrated for one",
    "tests/privacy/test_units.py::test_a_ledger_about_several_rows_is_not_used_for_fewer",
)
mutant(
    "training.private_model:PrivateModel.from_trained",
    "Ledger().add('train', trained.event, note, unit=trained.unit)",
    "Ledger().add('train', trained.event, note)",
    "a model trained on persons gets a ledger about records",
    "tests/privacy/test_units.py::test_a_model_trained_on_persons_is_not_calibrated_on_rows",
)
mutant(
    "guarantees.certificate:Certificate.is_vacuous",
    "self.coverage < useless or not self.terms.finite_threshold_expected",
    "self.coverage < useless",
    "a promise that only full sets keep is no warning",
    "tests/test_guarantees.py::TestCertificate::test_vacuous_is_said_in_plain_words",
)
mutant(
    "report.numbers:judge_release",
    "estimator.ledger_.seeded",
    "False",
    "a run whose noise anybody can repeat is called usable",
    "tests/report/test_report.py::test_the_verdict_follows_the_worst_that_is_known",
)
mutant(
    "report.spending:_secret_chances",
    "1 - event.fraction",
    "event.fraction",
    "the bar shows training as the part of the held-out records",
    "tests/report/test_officer.py::test_the_bar_of_a_secret_split_is_one_whole_divided_by_the_chances",
)
mutant(
    "report.numbers:find_low_parts",
    "rate.interval[1] < target",
    "rate.interval[0] > target",
    "a class that the private evaluation finds below the target is not flagged",
    "tests/report/test_officer.py::test_a_low_class_of_the_private_evaluation_is_flagged_as_private",
)
mutant(
    "report.numbers:PartEvaluation.is_below",
    "self.interval[1] < target",
    "self.interval[1] > target",
    "a class that the evaluation finds below the target is not flagged",
    "tests/report/test_officer.py::test_a_class_clearly_below_the_target_is_flagged",
)
mutant(
    "estimators.fitted:FittedEstimator._repr_html_",
    "float(self.delta)",
    "1e-5",
    "a notebook states epsilon at another delta than that of the fit",
    "tests/report/test_officer.py::test_a_notebook_shows_the_promise_at_the_delta_of_the_fit",
)
mutant(
    "report.planner:offset_times_mu",
    "float(whole) + aim.mean_rise",
    "float(whole)",
    "the planner's table leaves out the rise of the earlier steps",
    "tests/report/test_planner.py::test_the_shipped_offsets_are_those_of_the_library",
)
mutant(
    "report.page:_plan_alternatives",
    "1",
    "10 ** 9",
    "a page without ids plans as if persons had ids",
    "tests/privacy/test_units.py::test_every_printed_promise_is_that_of_the_unit",
)

# ---- draws by place

mutant(
    "privacy.random_streams:BlockStreams.generator",
    "(check_count('step', step, minimum=0) << 96) + (check_count('block', block, minimum=0) << 56)",
    "check_count('block', block, minimum=0) << 56",
    "a module draws alike at every step",
    "tests/sources/test_source_fits.py::test_what_a_module_draws_belongs_to_block_and_step",
)
mutant(
    "privacy.random_streams:BlockStreams.generator",
    "(check_count('step', step, minimum=0) << 96) + (check_count('block', block, minimum=0) << 56)",
    "check_count('step', step, minimum=0) << 96",
    "a module draws alike in all blocks",
    "tests/sources/test_source_fits.py::test_what_a_module_draws_belongs_to_block_and_step",
)
mutant(
    "training.torch.trainer:OpacusTraining._descend",
    "places.shares(drawn)",
    "places.shares(drawn[:0] if step else drawn)",
    "only the first step of a torch module has a batch",
    "tests/training/test_opacus.py::test_blocks_draw_batches_of_their_own_in_every_step",
)
mutant(
    "pipeline.release:_Part.__call__",
    "self.places.persons[block.id]",
    "range(block.owners.count)",
    "records at the same place of two blocks share the coin of the split",
    "tests/sources/test_source_fits.py::test_held_out_records_of_blocks_are_a_coin_each",
)
mutant(
    "privacy.random_streams:PlacedDraws._from",
    "return np.random.Generator(np.random.PCG64(self.seed).advance(place))",
    "return np.random.Generator(np.random.PCG64(self.seed).advance(place // 2 * 2))",
    "a block starts at a draw of its neighbor",
    "tests/sources/test_source_fits.py::test_draws_belong_to_places_whoever_makes_them",
)

# ---- risk control and other populations

mutant(
    "pipeline.losses:_round_gains",
    "np.floor(resolution * (1 - losses) + dither)",
    "np.ceil(resolution * (1 - losses) + dither)",
    "losses are rounded down",
    "tests/deployment/test_risk.py::test_rounding_by_a_secret_uniform_keeps_the_mean_and_the_order",
)
mutant(
    "pipeline.losses:sum_losses",
    "_round_gains(_person_means(kept, owners), dither, resolution)",
    "_round_gains(_person_means(kept, owners), generator.random(owners.count), resolution)",
    "each threshold rounds by a uniform of its own",
    "tests/deployment/test_risk.py::test_rounding_by_a_secret_uniform_keeps_the_mean_and_the_order",
)
mutant(
    "pipeline.losses:_person_means",
    "np.add.reduceat(losses, owners.offsets[:-1]) / owners.sizes",
    "np.minimum.reduceat(losses, owners.offsets[:-1])",
    "the smallest loss of a person counts",
    "tests/deployment/test_risk.py::test_the_loss_of_a_person_is_the_mean_over_their_rows",
)
mutant(
    "pipeline.losses:sum_losses",
    "losses = np.maximum(losses, after)",
    "pass",
    "a loss that rises is summed as it is",
    "tests/deployment/test_risk.py::test_a_loss_that_rises_is_replaced_by_its_running_maximum",
)
mutant(
    "deployment.risk:_guarantee",
    "SPLIT if is_held_out else UNIVERSAL",
    "SPLIT",
    "records that training has seen pass for held-out ones",
    "tests/deployment/test_risk.py::test_records_that_training_has_seen_need_a_smaller_level",
)
mutant(
    "pipeline.thresholds:_make_certificate",
    "rule.guarantee.held_out and rule.resolution == 1",
    "rule.guarantee.held_out",
    "rounded losses promise something about a single release",
    "tests/deployment/test_risk.py::test_only_resolution_one_speaks_of_a_single_release",
)
mutant(
    "quantile.loss_sums:LossSums.count",
    "int((left + right) // 2)",
    "int((left + right) // 2) + 1",
    "the sum at the next threshold is compared",
    "tests/deployment/test_risk.py::test_the_worst_staircase_of_losses_keeps_the_risk",
    "tests/deployment/test_risk.py::test_small_tables_keep_the_risk_exactly",
)
mutant(
    "quantile.loss_sums:LossSums.require_lattice",
    "scale % self.resolution",
    "False",
    "sums lie off the lattice of the noise",
    "tests/deployment/test_risk.py::test_noise_off_the_lattice_of_the_sums_is_refused",
)
mutant(
    "data.populations:keep_by_ratio",
    "bound * coins < ratios",
    "coins < ratios",
    "records are kept more often than their ratio says",
    "tests/deployment/test_populations.py::test_the_declared_population_is_covered",
    "tests/deployment/test_populations.py::test_coins_follow_the_ratio",
)
mutant(
    "data.populations:Thinning.place_groups",
    "np.where(is_kept, 0, -1)",
    "np.where(is_kept, 0, 0)",
    "rejected records find the threshold too",
    "tests/deployment/test_populations.py::test_rejected_records_of_a_block_are_in_no_group_and_stay_so",
    "tests/deployment/test_populations.py::test_an_estimator_covers_the_declared_population",
)
mutant(
    "pipeline.search_plan:CalibrationRule.for_population",
    "replace(self, part=part, has_released_size=True, ratio_bound=ratio_bound)",
    "replace(self, part=part, ratio_bound=ratio_bound)",
    "the number of kept records passes for a public one",
    "tests/deployment/test_populations.py::test_the_number_of_kept_records_is_released_with_noise_and_planned",
)
mutant(
    "pipeline.search_plan:CalibrationRule.for_population",
    "not self.guarantee.held_out",
    "False",
    "another population is promised for records that training has seen",
    "tests/deployment/test_populations.py::test_wrong_arguments_are_named",
)
# ---- overlapping groups

mutant(
    "data.groups:largest_thresholds",
    "np.vstack([thresholds, -nowhere])[places].max(axis=1)",
    "thresholds[places[:, 0]]",
    "a row gets the threshold of its first group",
    "tests/test_overlapping_groups.py::test_each_group_is_covered_where_the_smallest_threshold_would_fail",
    "tests/test_overlapping_groups.py::test_a_row_gets_the_largest_threshold_of_its_groups_and_full_sets_without_one",
)
mutant(
    "data.groups:largest_thresholds",
    "np.where(has_group(places)[:, None], largest, np.inf)",
    "largest",
    "a row in no group gets an empty set",
    "tests/test_overlapping_groups.py::test_a_row_gets_the_largest_threshold_of_its_groups_and_full_sets_without_one",
)
mutant(
    "pipeline.search_plan:SearchPlan.events",
    "self.rule.groups_per_record",
    "1",
    "a record pays for one of its groups",
    "tests/test_overlapping_groups.py::test_the_ledger_holds_the_searches_of_all_groups_of_a_record",
)
mutant(
    "pipeline.search_plan:SearchPlan.events",
    "self.size_noise.event(copies)",
    "self.size_noise.event(1)",
    "a record pays for the size of one of its groups",
    "tests/test_overlapping_groups.py::test_the_ledger_holds_the_searches_of_all_groups_of_a_record",
)
mutant(
    "data.groups:places_of_matrix",
    "np.take_along_axis(member, first, axis=1) & (member.sum(axis=1, keepdims=True) <= per_record)",
    "np.take_along_axis(member, first, axis=1)",
    "a row in too many groups gets the threshold of some of them",
    "tests/test_overlapping_groups.py::test_records_beyond_the_maximum_count_in_no_group_and_are_covered_by_full_sets",
)
mutant(
    "pipeline.evaluation:sensitive_sums",
    "2 * groups_per_record",
    "2 * bool(groups_per_record)",
    "an evaluated record pays for one of its groups",
    "tests/test_overlapping_groups.py::test_an_evaluation_charges_the_groups_of_a_record",
)
# ---- multilabel

mutant(
    "training.mechanisms.one_vs_rest:OneVsRest.event",
    "compose(*[self.mechanism.event] * self.n_labels)",
    "self.mechanism.event",
    "one of the labels pays for all",
    "tests/test_multilabel.py::test_the_heads_together_stay_within_the_budget",
)
mutant(
    "estimators.multilabel:PrivateMultilabelClassifier._release",
    "records.part(~is_held_out)",
    "records.part(is_held_out | True)",
    "the records that find the threshold train as well",
    "tests/test_multilabel.py::test_records_train_or_calibrate_and_never_both",
)
mutant(
    "estimators.multilabel:PrivateMultilabelClassifier.predict_set",
    "np.asarray(1 - probabilities <= self.threshold_)",
    "np.asarray(probabilities >= self.threshold_)",
    "sets hold the labels that are likelier than the threshold of doubt",
    "tests/test_multilabel.py::test_the_mean_loss_of_new_records_is_bounded",
)
mutant(
    "scores.losses:missed_labels",
    "shown > t",
    "shown > t + 0.1",
    "labels above the threshold are not counted as missed",
    "tests/test_multilabel.py::test_losses_by_hand",
)
# ---- recalibration and risk in another population

mutant(
    "deployment.recalibration:_join",
    '{"fit": fitted.event, STAGE: added.event}',
    '{"fit": fitted.event}',
    "the new records pay nothing in the ledger of the new release",
    "tests/deployment/test_recalibration.py::test_the_new_release_has_its_own_promises",
)
mutant(
    "deployment.recalibration:recalibrate",
    "round(1 - certificate.target, 12)",
    "2 * round(1 - certificate.target, 12)",
    "new thresholds miss twice as often as promised",
    "tests/deployment/test_recalibration.py::test_coverage_returns_after_a_change",
)
mutant(
    "deployment.risk:_Units.of",
    "rows[keep_by_ratio(ratios[rows], bound, coins)]",
    "rows",
    "the likelihood ratio of losses is ignored",
    "tests/deployment/test_populations.py::test_the_risk_of_the_declared_population_is_bounded",
)
mutant(
    "training.preprocessing.preprocess:PreprocessedModel.is_row_wise",
    "is_row_wise(self.inner)",
    "True",
    "a caller's model behind preprocessing keeps what it sees of the records",
    "tests/test_from_outside.py::test_a_model_keeps_nothing_of_the_records_that_score_or_evaluate_it",
)
mutant(
    "training.preprocessing.scaling:ScaledTargetModel.influence_form",
    "replace(form, target_ranges=(self.y_bounds, *form.target_ranges))",
    "form",
    "the correction takes targets in other units than training",
    "tests/training/test_influence.py::test_models_of_scaled_targets_are_corrected_in_the_units_of_the_target",
)
mutant(
    "training.engine.batching:SourceTraining.train_source",
    "unit_of_blocks(source).by_person",
    "False",
    "a mechanism for single records trains on persons",
    "tests/training/test_persons.py::test_a_mechanism_that_cannot_says_so_before_anything_is_released",
)
mutant(
    "training.engine.batching:EngineBlockBuilder._shortened",
    "restore_rows(integers[part], scales[part], features)",
    "None",
    "a record is clipped by the norm of another row than the one that is added",
    "tests/training/test_short_rows.py::test_norms_are_those_of_the_rows_that_are_multiplied",
)
mutant(
    "training.mechanisms.dpsgd:DPSGD.prepare_source",
    "is_large_table(n_records * unit.cap, source.width)",
    "is_large_table(source.sum(unit_count) * unit.cap, source.width)",
    "the number of records decides what is released",
    "tests/training/test_short_rows.py::test_only_large_tables_are_kept_short",
)
mutant(
    "training.engine.loop:BatchSums._gather",
    "records.scales.take(index)",
    "records.scales[: len(index)]",
    "the rows of a batch get the scales of other records",
    "tests/training/test_short_rows.py::test_training_on_short_rows_is_training_on_these_numbers",
)

# ---- scikit-learn code around a fit

mutant(
    "estimators.base:PrivateConformal.fit",
    "outer.mark(released)",
    "released",
    "a Pipeline with a scaler claims both promises",
    "tests/test_outer_steps.py::test_a_leak_is_in_every_statement_and_survives_saving",
)
mutant(
    "estimators.base:PrivateConformal.fit",
    "outer.warn(budget)",
    "outer.warn(None)",
    "a store pays for a fit whose scaler learned from the records for nothing",
    "tests/test_outer_steps.py::test_a_store_refuses_steps_and_searches",
)
mutant(
    "estimators.outer_steps:OuterUse.mark_promises",
    "certificate.voided(self._reason)",
    "certificate",
    "coverage is certified although steps outside learned from the records",
    "tests/test_outer_steps.py::test_a_leak_is_in_every_statement_and_survives_saving",
)
mutant(
    "estimators.outer_steps:_learns_nothing",
    "not any((name.endswith('_') and not name.endswith('_in_') for name in vars(step)))",
    "True",
    "a step that says that it needs no fit may learn",
    "tests/test_outer_steps.py::test_steps_that_learn_are_named",
)
mutant(
    "estimators.outer_steps:_add_search",
    "if in_fold:\n    return replace(found, is_searched=bool(search.refit))",
    "if True:\n    return replace(found, is_searched=bool(search.refit))",
    "the estimator that a search chose is called private",
    "tests/test_outer_steps.py::test_a_search_marks_the_estimator_that_it_chose",
)
mutant(
    "guarantees.certificate:Certificate.from_dict",
    "str(data.get('void_because', ''))",
    "''",
    "a file forgets why nothing is proven",
    "tests/test_outer_steps.py::test_a_leak_is_in_every_statement_and_survives_saving",
)
mutant(
    "training.preprocessing.components:PrivatePCA.release",
    "second, _ = self.release_moment(total, n_records=n_records, rng=rng)",
    "second = total",
    "directions of the exact second moment",
    "tests/training/test_releases.py::test_nothing_of_the_records_passes_a_step_but_through_its_release",
)
mutant(
    "deployment.labeled:separate_release",
    "copy_if_possible(estimator.estimator)",
    "estimator.estimator",
    "an estimator of the caller keeps labeled records",
    "tests/deployment/test_recalibration.py::test_a_model_of_the_caller_keeps_nothing_of_labeled_records",
)
mutant(
    "deployment.labeled:separate_release",
    "copy_if_possible(estimator.model_)",
    "estimator.model_",
    "a model of the caller keeps labeled records",
    "tests/test_from_outside.py::test_a_model_keeps_nothing_of_the_records_that_score_or_evaluate_it",
)
mutant(
    "estimators.multilabel:PrivateMultilabelClassifier._release",
    "copy_if_possible(model)",
    "model",
    "a model of the caller keeps the records that calibrate it",
    "tests/test_multilabel.py::test_the_heads_keep_nothing_of_the_records_that_calibrate_them",
)
mutant(
    "deployment.recalibration:recalibrate",
    '_join(estimator.ledger_, found.ledger, {f"new_{unit.count_name}": n}, counted=n_records is None)',
    '_join(estimator.ledger_, found.ledger, {f"new_{unit.count_name}": n}, counted=False)',
    "the counted number of new records is not listed",
    "tests/deployment/test_recalibration.py::test_a_counted_number_of_new_records_is_listed_as_taken_from_them",
)
mutant(
    "privacy.noise_search:_find_cell",
    "tried.cost <= epsilon",
    "tried.cost <= 1.1 * epsilon",
    "noise over the budget is taken as within it",
    "tests/privacy/test_solving.py::test_a_search_by_noise_ends_where_a_bisection_does",
)
mutant(
    "privacy.noise:_few_gaussian",
    "2 * scale * scale",
    "scale * scale",
    "a few draws have another law than many",
    "tests/privacy/test_noise.py::test_each_candidate_is_accepted_with_its_exact_probability",
)
mutant(
    "privacy.noise:_few_laplace",
    "is_negative and size_of == 0",
    "False",
    "zero is drawn twice as often by a search",
    "tests/privacy/test_noise.py::test_a_few_draws_are_those_of_arrays",
)
mutant(
    "privacy.noise:IntegerSource._few_words",
    "self._drawn[first:], count, 0",
    "self._drawn[first:], 0, 0",
    "random words are used twice",
    "tests/privacy/test_noise.py::test_a_few_draws_are_those_of_arrays",
)
mutant(
    "privacy.noise:IntegerSource.few",
    "value >= bound",
    "value > bound",
    "a few integers are not uniform",
    "tests/privacy/test_noise.py::test_a_few_draws_are_those_of_arrays",
)

# ---- what a user of torch is promised
mutant(
    "training.torch.settings:check_labels",
    "classes != labels",
    "len(classes) != len(labels)",
    "outputs of a torch module are taken for other labels",
    "tests/training/test_torch_estimators.py::test_labels_of_the_outputs_in_another_order_are_refused_and_the_same_order_is_kept",
)
mutant(
    "training.torch.trainer:OpacusTraining._try",
    "self._updates.run_dry([p for p in self.module.parameters() if p.requires_grad], self.device)",
    "None",
    "a torch optimizer that fails has spent the budget",
    "tests/training/test_torch_settings.py::test_what_would_fail_in_training_spends_nothing",
)
mutant(
    "training.torch.updates:Updates._run_schedule",
    "range(steps)",
    "range(1)",
    "a torch schedule that is too short has spent the budget",
    "tests/training/test_torch_settings.py::test_what_would_fail_in_training_spends_nothing",
)
mutant(
    "training.torch.model:TorchModel.outputs",
    "torch_rows(X, number_type(self.module))",
    "torch_rows(X)",
    "a float64 torch module scores rows that are rounded to float32",
    "tests/training/test_torch_estimators.py::test_rows_keep_the_precision_of_a_float64_module",
)
mutant(
    "training.torch.model:TorchBlock.__call__",
    "torch_rows(block.read(), self.dtype)",
    "torch_rows(block.read())",
    "a float64 torch module trains on rows that are rounded to float32",
    "tests/training/test_torch_estimators.py::test_rows_of_a_source_keep_the_precision_of_a_float64_module",
)
mutant(
    "training.torch.model:TorchBlock.__call__",
    "cut_numbers(real_targets(targets, 'float64'), self.dtype)",
    "cut_numbers(real_targets(targets, 'float64'), 'float32')",
    "targets in training have another precision than in the dry run of a torch module",
    "tests/training/test_torch_estimators.py::test_targets_have_the_precision_of_the_module_in_the_dry_run_and_in_training",
)
mutant(
    "pipeline.plan:FitPlan.training_cost",
    "self.secret_part is not None and self.held_out is not None",
    "False",
    "progress of a torch module shows more epsilon than its fit spends",
    "tests/training/test_torch_estimators.py::test_the_last_line_of_a_verbose_fit_is_what_the_ledger_says_of_training",
)
mutant(
    "pipeline.plan:_run_dry",
    "seen.looks_up_rows",
    "False",
    "token ids of a torch module are scaled to other ids",
    "tests/training/test_torch_estimators.py::test_token_ids_are_not_scaled",
)
mutant(
    "estimators.fitted:loaded_estimator",
    "'signal' in ledger.public_facts",
    "True",
    "a loaded torch module is fitted again by the recipe",
    "tests/training/test_torch_estimators.py::test_a_loaded_module_is_not_fitted_by_the_recipe",
)
mutant(
    "data.sources.dataset:_refuse_changing_items",
    "a.tobytes() != b.tobytes()",
    "False",
    "a torch data set with random augmentation has spent the budget",
    "tests/sources/test_datasets.py::test_items_that_change_are_refused_before_a_fit",
)
mutant(
    "pipeline.own_mechanism:_train_module",
    "training if request.task.private_range else ScaledTarget(training, request.task.scaled_bounds)",
    "training",
    "a torch module trains on targets that are far from its outputs",
    "tests/training/test_torch_estimators.py::test_a_module_is_trained_on_targets_between_minus_one_and_one",
)
mutant(
    "estimators.multilabel:PrivateMultilabelClassifier.fit",
    "isinstance(self.estimator, MissingEstimator)",
    "False",
    "a loaded multilabel classifier accepts a fit without the mechanism that trained it",
    "tests/test_multilabel.py::test_a_loaded_mechanism_is_not_replaced_by_the_recipe",
)
mutant(
    "estimators.multilabel:PrivateMultilabelClassifier._restore",
    "loaded_estimator(self.ledger_)",
    "None",
    "a loaded multilabel classifier trains the recipe instead of the mechanism of its file",
    "tests/test_multilabel.py::test_a_loaded_mechanism_is_not_replaced_by_the_recipe",
)
mutant(
    "estimators.bounds_choice:BoundsChoice.of_declared",
    "self.needs_public is None and not pays_as_quantiles(self.signal, len(bounds.private))",
    "False",
    "nobody learns that noise decides the bounds of a column in a small table",
    "tests/test_feature_bounds.py::test_columns_without_bounds_get_a_hint_where_noise_may_hide_them",
)
mutant(
    "training.preprocessing.private_bounds:PrivateBounds.calibrated",
    "self._n_columns / self.share",
    "1 / self.share",
    "the counts of many columns spend more than their share of the budget",
    "tests/training/test_private_bounds.py::test_the_event_is_that_of_the_noise_that_is_drawn",
)
mutant(
    "training.preprocessing.private_target:_in_units",
    "max(-low, high) <= _FARTHEST * half",
    "True",
    "targets far from zero lose their last bits in float32",
    "tests/training/test_table_edges.py::test_a_target_whose_units_float32_cannot_hold_loses_nothing",
)
mutant(
    "training.recalibration:record_sums",
    "np.isfinite(u).all(axis=1, keepdims=True)",
    "np.isfinite(logits).all(axis=1, keepdims=True)",
    "one record whose logits are too far apart turns a sum into NaN",
    "tests/training/test_recalibration.py::test_a_record_whose_logits_overflow_adds_nothing",
)
mutant(
    "data.schema:Schema.declared",
    "column.bounds if self.bounds is None else self.bounds",
    "self.bounds",
    "public bounds of a target that is declared as a column are dropped",
    "tests/test_schema.py::test_a_target_that_is_declared_as_a_column_has_its_bounds_and_scale",
)
mutant(
    "training.preprocessing.private_bounds:PrivateBounds.bounds_event",
    "self.noise.event(self._n_columns)",
    "self.noise.event(len(self._features))",
    "the counts of the target are not paid for",
    "tests/test_feature_bounds.py::test_every_column_that_is_counted_is_paid_for",
)
mutant(
    "pipeline.plan:_recipe",
    "bounds.indicators",
    "None",
    "a number from 0 to 1 in a schema is taken as an indicator",
    "tests/test_feature_bounds.py::test_every_column_that_is_counted_is_paid_for",
)
mutant(
    "deployment.recalibration:_join",
    "{'fit': fitted.component_names}",
    "None",
    "a recalibrated release does not say what its fit consisted of",
    "tests/deployment/test_recalibration.py::test_the_new_release_has_its_own_promises",
)
mutant(
    "_base.object_state:_of_class",
    "value.__mro__[1:]",
    "()",
    "state on the base class of a caller's module is not compared",
    "tests/training/test_torch_hidden_state.py::test_state_that_a_base_class_keeps_is_refused",
)
mutant(
    "_base.object_state:_own_digest",
    "f'{value.dtype} {tuple(value.shape)} {value.device} {value.requires_grad}'",
    "f'{value.dtype} {tuple(value.shape)} {value.device}'",
    "a torch module is not tried again when more of it is trained",
    "tests/training/test_torch_hidden_state.py::test_a_module_is_tried_again_after_more_of_it_is_trained",
)
mutant(
    "training.torch.random_state:_draw",
    "dim is None and n > 1",
    "False",
    "records of a block share a draw, and a record in front moves others to another one",
    "tests/training/test_torch_draws.py::test_draws_that_are_shared_or_not_secret_are_refused_before_anything_is_spent",
)
mutant(
    "training.torch.random_state:_by_row_class",
    "_torch_states() != self.states",
    "False",
    "a module that sets a known seed hides that its masks are known",
    "tests/training/test_torch_draws.py::test_draws_that_are_shared_or_not_secret_are_refused_before_anything_is_spent",
)
mutant(
    "training.torch.random_state:refuse_other_generators",
    "_other_states() != started",
    "False",
    "a module mixes records by a rare coin of NumPy",
    "tests/training/test_torch_draws.py::test_draws_that_are_shared_or_not_secret_are_refused_before_anything_is_spent",
)
mutant(
    "training.torch.random_state:_refuse_generator",
    "generator is not None and not any(generator is known for known in own)",
    "False",
    "a module draws from a generator with a known seed",
    "tests/training/test_torch_draws.py::test_draws_that_are_shared_or_not_secret_are_refused_before_anything_is_spent",
)
mutant(
    "training.torch.dry_run:_Trial.check_gradients",
    "self._check_scales(plan)",
    "None",
    "a module divides all rows of a batch by 255 if one of them is large",
    "tests/training/test_torch_scales.py::test_what_a_module_does_to_all_rows_by_the_scale_of_some_is_refused",
)
mutant(
    "training.torch.comparison:Differences._limits",
    "_PRECISE if self._is_precise else 0.001",
    "0.001",
    "weak mixing by a module that computes in float32 is taken for rounding",
    "tests/training/test_torch_scales.py::test_what_a_module_does_to_all_rows_by_the_scale_of_some_is_refused",
)
mutant(
    "training.torch.dry_run:_Trial.check_state",
    "number < 2 or number == len(batches) - 1",
    "number == len(batches) - 1",
    "a module stores the number of records of its last batch",
    "tests/training/test_torch_hidden_state.py::test_a_module_that_keeps_the_size_of_its_last_batch_is_refused",
)
mutant(
    "_base.used_names:is_trusted",
    "package in TRUSTED and (not (package in sys.stdlib_module_names and _is_file_of_caller(package)))",
    "package in TRUSTED",
    "a module in a file profile.py of the caller's keeps records in a global",
    "tests/training/test_torch_hidden_state.py::test_a_file_of_the_caller_with_the_name_of_a_standard_module_is_not_trusted",
)
mutant(
    "_base.used_names:_absolute_names",
    "f'{package}.{name}' if name else package",
    "name",
    "records are kept in a module that forward imports by a relative name",
    "tests/training/test_torch_hidden_state.py::test_a_relative_import_inside_forward_is_followed",
)
mutant(
    "_base.object_state:state_digest",
    "isinstance(value, _UNREADABLE)",
    "False",
    "a generator of the caller's keeps what it was sent",
    "tests/training/test_torch_hidden_state.py::test_contents_that_cannot_be_read_are_refused",
)
mutant(
    "_base.object_state:state_digest",
    "found[_TOO_MANY] = _UNKNOWN",
    "pass",
    "what a module keeps behind its first 200,000 values is not compared",
    "tests/training/test_torch_hidden_state.py::test_too_many_values_are_refused",
)
mutant(
    "training.torch.modules:gradient_rows",
    "_empty_padding(module, dict(zip(map(id, trained), samples, strict=True)))",
    "None",
    "a padding word has a gradient where Opacus computes it",
    "tests/training/test_torch_kinds.py::test_padding_words_have_no_gradient_where_opacus_computes_it",
)
mutant(
    "training.torch.modules:state_of",
    "list(getattr(shared, name).values())",
    "[]",
    "a hook that all modules call may keep records",
    "tests/training/test_torch_hidden_state.py::test_state_of_a_hook_that_all_modules_call_is_refused",
)
mutant(
    "training.torch.trial_rows:TrialRows.find_scales",
    "replace(kind, scales=SCALES), replace(kind, has_outlier=True)",
    "(replace(kind, scales=SCALES),)",
    "a module may cut its rows at deviations of the whole batch",
    "tests/training/test_torch_scales.py::test_what_a_module_does_to_all_rows_by_the_scale_of_some_is_refused",
)
mutant(
    "training.torch.random_state:_is_switched_off",
    "value == 0",
    "not value",
    "a dropout without the argument train draws in secret",
    "tests/training/test_torch_draws.py::test_a_dropout_without_the_argument_train_counts_as_a_draw",
)
mutant(
    "training.engine.gradients:ClippedGradient.__init__",
    'self.chunk == 1 and dtype == "float32"',
    "False",
    "records go one at a time where float32 products round by the place",
    "tests/training/test_rounding.py::test_a_product_that_rounds_by_place_is_noticed",
)
mutant(
    "training.engine.networks:RowOutputs.__init__",
    'self._blocks.chunk == 1 and dtype == "float32"',
    "False",
    "rows are predicted one at a time where float32 products round by the place",
    "tests/training/test_same_bits.py::test_a_product_that_rounds_by_place_is_noticed",
)
