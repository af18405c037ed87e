# ruff: noqa: E501 (code before and after stands in one line)
"""Mutants of the wiring, with the tests that must notice them. Small, plausible, one each.

They are about connections: a formula that is right, and a caller that gives it the wrong number or drops what it
returns, an event that misses in the ledger, a part of the records that is used twice, a seed that two draws share, a
check that nobody calls. Formulas have exact values in their tests and random mutants (``draw.py``).

An entry names a function by ``module:qualified name``, the code before (an expression or statements, found exactly once
in that function, whatever its layout), the code after, what would go wrong, and the tests that fail on it. A function
that moved to another module is still found by its qualified name. A new promise adds one mutant of its wiring.
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


def mutant(where: str, before: str, after: str, why: str, *tests: str) -> None:
    """Add one to the list."""
    MUTANTS.append(Mutant(where, ((before, after),), why, tests))


# ---- audit

mutant(
    "audit.run:audit",
    "not null",
    "False",
    "both worlds of an audit are the same",
    "tests/audit/test_audit.py::test_catches_clipping_switched_off",
)
# ---- budget

mutant(
    "budget:_as_ledger",
    "event.entries",
    "event.entries[:1]",
    "only the first entry of a fit is written down",
    "tests/privacy/test_budget.py::test_a_fit_spends_from_the_store_what_its_ledger_says",
)
# ---- calibration

mutant(
    "core.release:_search",
    "child_seeds(seed, n_searches)",
    "[seed] * n_searches",
    "all groups share one noise",
    "tests/core/test_wiring.py::test_each_search_draws_its_own_noise",
)
mutant(
    "core.release:_search",
    "noise",
    "plan.noises[-1]",
    "every level is searched with the last one's noise",
    "tests/core/test_wiring.py::test_each_level_has_the_noise_of_its_own_sensitivity",
)
mutant(
    "core.release:release_counts",
    "ledger = ledger.mark_seeded()",
    "pass",
    "a seeded search looks private",
    "tests/deployment/test_calibration.py::TestBudget::test_with_the_default_accountant",
)
mutant(
    "core.release:_search",
    "plan.problem.release_confidence",
    "None",
    "the certificate promises what the search did not aim at",
    "tests/core/test_release_confidence.py::test_scores_of_a_known_number",
    "tests/core/test_release_confidence.py::test_on_demand_the_release_covers_the_level",
)
mutant(
    "core.release:_make_certificate",
    "problem.n_records",
    "plan.n_nominal",
    "records of a split certificate are those of the part",
    "tests/guarantees/test_promises_in_words.py::test_records_of_a_split_certificate_are_those_of_the_whole_table",
)
mutant(
    "core.release:_make_certificate",
    "assumptions.append(OVERLAPPING_GROUPS(problem.groups_per_record) if several else FIXED_GROUPS)",
    "None",
    "the certificate of groups is without its assumption",
    "tests/guarantees/test_promised_numbers.py::test_groups_have_their_assumption_and_no_rank_of_the_whole",
)
# ---- cli

mutant(
    "report.verdict:_judge_proof",
    "ledger.epsilon(delta, release.accountant)",
    "ledger.epsilon(delta, release.accountant, rows=1)",
    "the verdict tells the epsilon of one row where k are protected",
    "tests/privacy/test_units.py::test_every_printed_promise_is_that_of_the_unit",
)
mutant(
    "cli.files:choose_csv_format",
    "'decimal'",
    "'encoding'",
    "the decimal mark of the command line is dropped",
    "tests/cli/test_cli_csv.py::test_one_table_in_every_form_gives_one_fit",
)
mutant(
    "data.sources.tables:Table.as_frame",
    "as_frame(batch, schema, self.csv_format if self.first.is_csv else None)",
    "as_frame(batch, schema)",
    "a source reads numbers without the declared marks",
    "tests/cli/test_cli_csv.py::test_the_source_takes_the_format_of_the_schema",
)
# ---- conformal

mutant(
    "conformal.base:PrivateConformal._problem",
    "self.delta",
    "1e-05",
    "the estimator's delta is ignored",
    "tests/core/test_wiring.py::test_every_public_choice_reaches_the_ledger",
)
mutant(
    "conformal.base:PrivateConformal._problem",
    "self._feature_bounds(task, records.width, names, signal)",
    "column_bounds((records.records.whole.read().min(axis=0) - 1e-09, records.records.whole.read().max(axis=0) + 1e-09), records.width, None)",
    "the estimator takes its feature bounds from the records",
    "tests/core/test_wiring.py::test_every_public_choice_reaches_the_ledger",
)
mutant(
    "conformal.base:PrivateConformal._apply_schema",
    "return schema.encode(X)",
    "return (*schema.encode(X)[:2], persons)",
    "the column of persons is not used",
    "tests/data/test_frames.py::test_persons_come_from_the_schema",
)
mutant(
    "estimators.base:_records_from_arrays",
    "Block(0, rows, targets[kept], owners, groups, kept)",
    "Block(0, rows, targets[kept], None, groups, kept)",
    "training does not get the persons",
    "tests/estimators/test_person_fits.py::test_split_parts_and_groups_draw_persons",
)
mutant(
    "estimators.ingest:records_from_source",
    "source.map(partial(keep_rows, draws, places, given.unit.cap))",
    "source",
    "rows of persons in blocks are not capped",
    "tests/data/sources/test_person_blocks.py::test_a_fit_on_files_and_clusters_is_that_in_memory",
)
# ---- guarantees

mutant(
    "guarantees.registry:_universal_levels",
    "'add'",
    "'remove'",
    "the inner level is taken from the wrong direction",
    "tests/core/test_wiring.py::test_the_inner_level_uses_the_direction_of_result_b",
)
mutant(
    "guarantees.certificate:check_release_confidence",
    "guarantee != AUTO and (not guarantee_of(guarantee).held_out)",
    "guarantee is None",
    "what one release covers is promised where training records are reused",
    "tests/core/test_release_confidence.py::test_refused_where_training_records_are_reused",
)
# ---- persons

mutant(
    "persons:Persons.part",
    "np.repeat(drawn, self.sizes)",
    "np.repeat(drawn, self.sizes)[::-1]",
    "a split takes the rows of other persons",
    "tests/data/test_persons.py::test_parts_draw_persons",
)
# ---- privacy

mutant(
    "privacy.events:_parallel_histories",
    "[history for part in event.events for history in possible_histories(part)]",
    "[history for part in event.events[:1] for history in possible_histories(part)]",
    "of disjoint parts only the first counts",
    "tests/privacy/test_accounting.py::test_parallel_inside_sequential_takes_the_worst_history",
)
mutant(
    "privacy.accounting:Accountant._group_epsilon",
    "('add', 'remove')",
    "('add',)",
    "groups: someone who takes records out is forgotten",
    "tests/privacy/test_group.py::test_both_directions_count",
)
mutant(
    "privacy.noise_search:sized_lattice_noise.spending",
    "zip(searches, counts, strict=True)",
    "zip(searches, counts[:1], strict=False)",
    "several levels, noise for one",
    "tests/core/test_wiring.py::test_a_split_ledger_holds_every_level",
)
mutant(
    "privacy.noise_search:sized_lattice_noise.together",
    "compose(spent, calibration)",
    "calibration",
    "calibration noise forgets what training spent",
    "tests/core/test_wiring.py::test_records_used_twice_count_twice",
)
mutant(
    "privacy.random_streams:secure_bytes",
    "[seed, _INTEGER_NOISE]",
    "seed",
    "training and search share a seeded stream",
    "tests/privacy/test_noise.py::test_training_and_search_do_not_share_a_seeded_stream",
)
mutant(
    "privacy.events:disclose_parts",
    "ParallelDpEvent(parts)",
    "parts[0]",
    "of a disclose_parts split only training counts",
    "tests/privacy/test_secret_split.py::test_the_mixture_costs_less_than_the_worse_part_and_other_accountants_count_that",
)
# ---- release

mutant(
    "core.fit:_part",
    "(low <= drawn) & (drawn < high)",
    "(low <= drawn) & (drawn < high) | (high == 1.0) & (np.arange(len(drawn)) % 50 == 0)",
    "two percent of the held-out rows are trained on",
    "tests/core/test_wiring.py::test_the_two_parts_share_no_record",
)
mutant(
    "core.fit:_parts",
    "(0.0, fraction)",
    "(0.0, 1.0)",
    "all records are scored although a part was held out",
    "tests/core/test_wiring.py::test_the_two_parts_share_no_record",
)
mutant(
    "core.fit:_parts",
    "(0.0, fraction)",
    "(0.0, held_out)",
    "the evaluation part also calibrates",
    "tests/core/test_self_evaluation.py::test_three_parts_share_no_person_and_have_their_shares",
)
mutant(
    "core.fit:_count_scores",
    "BlockCounts(scored, group)",
    "BlockCounts(scored)",
    "every group counts all records",
    "tests/core/test_wiring.py::test_each_group_counts_its_own_records_only",
)
mutant(
    "core.fit:_count_scores",
    "task.score_range",
    "(0.0, 1.001)",
    "the range of the scores comes from the records",
    "tests/core/test_wiring.py::test_the_score_range_is_public",
)
mutant(
    "core.release:release_counts",
    "reservation.commit(ledger)",
    "reservation.commit(Ledger())",
    "a fit commits nothing",
    "tests/privacy/test_budget.py::test_fit_reserves_exactly_what_it_commits",
)
mutant(
    "core.release:release_counts",
    "store.reserve(plan.ledger(), note=note)",
    "store.reserve(plan.spent, note=note)",
    "a fit reserves its training only",
    "tests/privacy/test_budget.py::test_fit_reserves_exactly_what_it_commits",
)
mutant(
    "core.fit:release",
    "child_seeds(random_state, 3)",
    "(random_state,) * 3",
    "training, split and search share a seed",
    "tests/core/test_wiring.py::test_training_assignment_and_search_are_seeded_apart",
)
mutant(
    "core.release:_make_certificate",
    "task.classes_found",
    "False",
    "found classes are certified",
    "tests/estimators/test_found_classes.py::test_found_classes_are_never_certified",
)
mutant(
    "core.fit:_count_scores",
    "one_row_of_each(scored, stream_seed(seed, SCORED_ROWS), keep=True)",
    "scored",
    "every record of a person is counted in the search",
    "tests/estimators/test_person_fits.py::test_split_parts_and_groups_draw_persons",
)
# ---- scoring

mutant(
    "core.fit:_score_block",
    "persons",
    "None",
    "the correction of a person fit removes one row",
    "tests/estimators/test_person_fits.py::test_corrected_scores_remove_the_whole_person",
)
mutant(
    "core.fit:_score_block",
    "block.with_steps(*steps)",
    "block",
    "records are scored before preprocessing",
    "tests/core/test_data_path.py::test_records_are_preprocessed_once_to_train_and_once_to_score",
)
# ---- searches

mutant(
    "core.plan:Plan.ledger",
    "compose(*events)",
    "events[0]",
    "split, several levels: only the first is in the ledger",
    "tests/core/test_wiring.py::test_a_split_ledger_holds_every_level",
)
mutant(
    "core.plan:Plan.ledger",
    "self.guarantee.held_out and spent.entries and (notes or shares is not None)",
    "spent.entries and notes",
    "records used twice count once",
    "tests/core/test_wiring.py::test_records_used_twice_count_twice",
)
# ---- strategy

mutant(
    "core.fit_plan:FitPlan.train",
    "self.n_training",
    "None",
    "training divides by the true number of records",
    "tests/core/test_wiring.py::test_a_mechanism_sees_clipped_targets_and_the_public_number_of_records",
)
mutant(
    "core.fit_plan:FitPlan.enter",
    "ledger.then(self.model.ledger)",
    "ledger",
    "a foreign model is free",
    "tests/estimators/test_conformal.py::TestPrivateModel::test_on_its_own_records",
)
mutant(
    "core.fit_plan:_own_mechanism",
    "Preprocessed((PublicBounds(*bounds.pair),), found)",
    "found",
    "declared feature bounds do not reach an own mechanism",
    "tests/core/test_wiring.py::test_declared_bounds_reach_an_own_mechanism",
)
# ---- tasks

mutant(
    "core.tasks:Prediction.scores",
    "np.asarray(np.maximum(scores, self._own_scores(values, targets)))",
    "scores",
    "the correction is computed and not used",
    "tests/core/test_wiring.py::test_corrected_scores_are_the_ones_that_count",
    "tests/core/test_wiring.py::test_corrected_residuals_are_the_ones_that_count",
)
mutant(
    "tasks:Regression.training_targets",
    "np.clip(to_scale(targets, self.y_scale), *self.scaled_bounds)",
    "np.asarray(targets)",
    "targets beyond their bounds reach the mechanism",
    "tests/core/test_wiring.py::test_a_mechanism_sees_clipped_targets_and_the_public_number_of_records",
)
# ---- training

mutant(
    "training.base:Around.event",
    "compose(*known)",
    "self.mechanism.event",
    "preprocessing is free",
    "tests/training/test_releases.py::test_every_private_part_is_in_the_event",
)
mutant(
    "training.preprocess:Preprocessed.train_on",
    "source = source.map(methodcaller('with_steps', fitted.apply_to_records))",
    "source.map(methodcaller('with_steps', fitted.apply_to_records))",
    "training does not see the preprocessed rows",
    "tests/training/test_releases.py::test_training_sees_what_prediction_sees",
)
mutant(
    "training.preprocess:Preprocessed.train_on",
    "stream_seed(run.random_state, PREPROCESSING)",
    "run.random_state",
    "steps and mechanism share a seeded stream",
    "tests/training/test_preprocess.py::test_steps_and_mechanism_do_not_share_a_seeded_stream",
)
mutant(
    "training.steps:release_mean_and_scale",
    "gaussian_release(total, noise, rng, n_records)",
    "total",
    "the target's scale is exact",
    "tests/training/test_releases.py::test_nothing_of_the_records_passes_a_mechanism_but_through_its_release",
)
mutant(
    "training.summary:SufficientStatistics.train_on",
    "release_symmetric(gram, gram_noise, rng)",
    "gram",
    "the Gram matrix is exact",
    "tests/training/test_releases.py::test_nothing_of_the_records_passes_a_mechanism_but_through_its_release",
)
mutant(
    "training.descent:Descent.step",
    "self._release(total, noise) * self.normalizer",
    "total",
    "an audit of training hears the sum before its noise",
    "tests/audit/test_audit.py::test_training_tells_the_sums_that_made_its_parameters",
)
mutant(
    "training.gradients:ClippedGradient._read",
    "records.owners.weights_of(where)",
    "np.ones(m)",
    "sampled batches forget the weight",
    "tests/training/test_persons.py::test_repeating_a_persons_only_row_changes_nothing",
)
mutant(
    "training.gradients:ClippedGradient.sum",
    "records.owners.rows_of(persons)",
    "persons",
    "a batch of persons is read as a batch of rows",
    "tests/training/test_persons.py::test_repeating_a_persons_only_row_changes_nothing",
)
mutant(
    "training.private_bounds:PrivateBounds.own_parts",
    "len(self._scales)",
    "1",
    "the counts of one column are paid for",
    "tests/training/test_private_bounds.py::test_the_event_is_that_of_the_noise_that_is_drawn",
)

# ---- the recipe on tables

mutant(
    "training.recalibration:block_sums",
    "block.owners.weights",
    "np.ones(len(block))",
    "every row of a person counts in full",
    "tests/training/test_recalibration.py::test_neighbors_differ_by_the_sensitivity_at_most",
)
mutant(
    "training.private_bounds:PrivateBounds.counts",
    "[rows[:, place] for place in self.columns]",
    "[rows[:, place] for place in range(len(self.columns))]",
    "bounds are found from the first columns instead of the named ones",
    "tests/data/test_feature_bounds.py::test_only_undeclared_bounds_are_found_and_paid_for",
)
mutant(
    "training.preprocessing.relevance:PrivateRelevance.event",
    "compose(counts, gaussian_event(self.noise_multiplier))",
    "counts",
    "the statistics of the columns are released and not paid for",
    "tests/training/test_relevance.py::test_counts_and_statistics_are_both_paid",
)
mutant(
    "training.preprocessing.encoding:PrivateTargetEncoding.fit_source",
    "one_row_of_each(source, stream_seed(seed, SCORED_ROWS)).sum(self.counts)",
    "source.sum(self.counts)",
    "every row of a person is in the counts of categories",
    "tests/training/test_target_encoding.py::test_a_person_has_the_cost_of_one_record",
)
mutant(
    "training.base:Around.stages",
    "(*own, *inner)",
    "inner",
    "the plan of a fit leaves out what its preprocessing steps cost",
    "tests/training/test_preprocess.py::test_every_private_step_has_its_entry_in_a_ledger",
)
mutant(
    "core.tasks:Regression._own_scores",
    "to_scale(targets, self.y_scale)",
    "targets",
    "scores use units where the model uses the scale",
    "tests/data/test_scales.py::test_a_target_is_in_its_interval_exactly_if_its_score_is_within_the_threshold",
)
mutant(
    "training.mechanisms.by_width:LayersByWidth.train_on",
    "{**trained.found_privately, 'hidden': list(hidden)}",
    "trained.found_privately",
    "a ledger says that the layers were public before the release",
    "tests/training/test_by_width.py::test_quantiles_of_skewed_columns_make_one_layer_of_two",
)

# ---- units of privacy, the budget store, small parts, torch modules


mutant(
    "data.sources.base:SameBlocks.__call__",
    "self.digests.get(block.id) != digest(block, self.key)",
    "block.id not in self.digests",
    "a collection that shuffles at each reading is trained on and held out at once",
    "tests/data/sources/test_digests.py::test_a_collection_that_shuffles_at_each_computation_is_refused",
)
mutant(
    "estimators.base:PrivateConformal._release",
    "list_record_assumptions(original)",
    "()",
    "a release does not say that it trusts how the records came",
    "tests/guarantees/test_trust.py::test_each_thing_that_is_trusted_is_on_record",
)
mutant(
    "privacy.units:Unit.join",
    "self.by_person != other.by_person",
    "False",
    "steps about rows and steps about persons add up",
    "tests/privacy/test_units.py::test_rows_and_persons_with_ids_do_not_add_up",
)
mutant(
    "core.release:release_counts",
    "warn_of_failures(checks, stacklevel=4)",
    "None",
    "a release does not warn of a weak budget",
    "tests/core/test_budget_checks.py::test_a_release_warns_and_records_the_outcome",
)
mutant(
    "privacy.ledger:Ledger.cost_of",
    "self.relation is Relation.REPLACE_ONE",
    "False",
    "a replacement is charged as one added or removed record",
    "tests/privacy/test_relations.py::test_a_replacement_costs_two_steps_exactly_for_gaussian_noise",
)
mutant(
    "data.persons:require_unit",
    "about.group > unit.group",
    "False",
    "a model that protects five rows is calibrated for one",
    "tests/privacy/test_units.py::test_a_ledger_about_several_rows_is_not_used_for_fewer",
)
mutant(
    "training.model:PrivateModel.from_trained",
    "Ledger().add('train', trained.event, note, unit=trained.unit)",
    "Ledger().add('train', trained.event, note)",
    "a model trained on persons gets a ledger about records",
    "tests/privacy/test_units.py::test_a_model_trained_on_persons_is_not_calibrated_on_rows",
)

# ---- draws by place

mutant(
    "core.fit:_part",
    "places.persons[block.id]",
    "range(block.owners.count)",
    "records at the same place of two blocks share the coin of the split",
    "tests/data/sources/test_source_fits.py::test_held_out_records_of_blocks_are_a_coin_each",
)

mutant(
    "deployment.monitoring:CoverageMonitor._add",
    "self._bet.log_factor(first)",
    "self._bet.log_factor(pairs[0])",
    "the alarm judges the thresholds in force, which hide a change",
    "tests/deployment/test_following.py::test_a_rise_is_seen_although_the_thresholds_follow_it",
)
mutant(
    "deployment.monitoring:CoverageMonitor._add",
    "plan.next(self._thresholds[-1], pairs)",
    "plan.next(self._thresholds[-1], [first] * len(pairs))",
    "thresholds follow the misses of the first threshold",
    "tests/deployment/test_following.py::test_each_group_has_its_own_threshold_in_force",
)
mutant(
    "deployment.monitoring:_tolerated",
    "min(1 - covered, _MOST_TOLERATED * (1 - estimator.certificate_.target))",
    "1 - covered",
    "the default of a monitor tolerates what no rise reaches",
    "tests/deployment/test_monitoring.py::test_the_default_tolerates_what_the_release_was_promised_with",
)
mutant(
    "cli.fit:_add_columns",
    "(*schema.columns, *template([name for name in names if name not in known]).columns)",
    "(*schema.feature_columns, *template([name for name in names if name not in known]).columns)",
    "the command line drops the bounds and the scale that the target's own column declares",
    "tests/cli/test_cli_options.py::test_the_declarations_of_the_targets_own_column_reach_the_estimator",
)

# ---- numbers about a release

mutant(
    "core.evaluation:sensitive_sums",
    "2 * n_levels",
    "n_levels",
    "an evaluation pays for misses and not for sizes",
    "tests/deployment/test_evaluation.py::test_the_ledger_pays_for_every_sum",
)
mutant(
    "core.evaluation:OutcomeCounts.with_noise",
    "noise.sample(values.size, source)",
    "np.repeat(noise.sample(len(values), source), 2)",
    "misses and hits share one noise, so their difference is exact",
    "tests/deployment/test_evaluation.py::test_both_counts_of_a_pair_have_noise_of_their_own",
)
mutant(
    "threshold.single_release:_NoisyLevel._bound",
    "np.min((0.5 - self.alpha) * self.ends, axis=0)",
    "np.zeros(len(self.masses))",
    "the level of one release forgets that its rank moved with the noise of the size",
    "tests/threshold/test_release_level.py::test_the_level_after_a_released_size_fails_as_often_as_it_may[40-0.015]",
)
# ---- risk control and other populations

mutant(
    "core.losses:sum_losses",
    "_round_gains(_person_means(kept, owners), dither, resolution)",
    "_round_gains(_person_means(kept, owners), generator.random(owners.count), resolution)",
    "each threshold rounds by a uniform of its own",
    "tests/deployment/test_risk.py::test_rounding_by_a_secret_uniform_keeps_the_mean_and_the_order",
)
mutant(
    "deployment.recalibration:recalibrate",
    "has_trained_release(estimator, sketch)",
    "False",
    "a release is calibrated again on the records that trained it",
    "tests/data/test_refits.py::test_recalibration_on_training_records_is_refused_and_spends_nothing",
)
# ---- overlapping groups

mutant(
    "core.plan:Plan.ledger",
    "(problem.unit.counted, problem.groups_per_record)",
    "(problem.unit.counted, 1)",
    "a record pays for one of its groups",
    "tests/estimators/test_overlapping_groups.py::test_the_ledger_holds_the_searches_of_all_groups_of_a_record",
)
# ---- multilabel

mutant(
    "training.mechanisms.one_vs_rest:OneVsRest.event",
    "compose(*[self.mechanism.event] * self.n_labels)",
    "self.mechanism.event",
    "one of the labels pays for all",
    "tests/estimators/test_multilabel.py::test_the_heads_together_stay_within_the_budget",
)
mutant(
    "core.fit:release",
    "count_losses(found.task, trained.model, for_threshold, spent, n_groups=n_groups, steps=plan.steps, seed=search_seed)",
    "count_losses(found.task, trained.model, records, spent, n_groups=n_groups, steps=plan.steps, seed=search_seed)",
    "the records that find the threshold train as well",
    "tests/estimators/test_multilabel.py::test_records_train_or_calibrate_and_never_both",
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
    "deployment.calibrate:UsedRecords.choose",
    "rows[kept]",
    "rows",
    "the likelihood ratio of losses is ignored",
    "tests/deployment/test_populations.py::test_the_risk_of_the_declared_population_is_bounded",
)
mutant(
    "training.base:Mechanism.train_source",
    "unit.by_person",
    "False",
    "a mechanism for single records trains on persons",
    "tests/training/test_persons.py::test_a_mechanism_that_cannot_says_so_before_anything_is_released",
)

# ---- scikit-learn code around a fit

mutant(
    "estimators.base:PrivateConformal.fit",
    "outer.mark(released)",
    "released",
    "a Pipeline with a scaler claims both promises",
    "tests/estimators/test_outer_steps.py::test_a_leak_is_in_every_statement_and_survives_saving",
)
mutant(
    "estimators.base:PrivateConformal.fit",
    "outer.warn(budget)",
    "outer.warn(None)",
    "a store pays for a fit whose scaler learned from the records for nothing",
    "tests/estimators/test_outer_steps.py::test_a_store_refuses_steps_and_searches",
)
mutant(
    "deployment.recalibration:recalibrate",
    '_join(estimator.ledger_, found.ledger, {f"new_{unit.count_name}": n}, counted=n_records is None)',
    '_join(estimator.ledger_, found.ledger, {f"new_{unit.count_name}": n}, counted=False)',
    "the counted number of new records is not listed",
    "tests/deployment/test_recalibration.py::test_a_counted_number_of_new_records_is_listed_as_taken_from_them",
)

# ---- torch modules: records cannot meet

mutant(
    "torch.checks:check_graph",
    "_check_operation(node, secret)",
    "None",
    "a custom operation sees several records",
    "tests/torch/test_isolation.py::test_refuses[custom operation]",
)
mutant(
    "torch.blocks:BatchSum._summed",
    "self.layers.generator(block.id, self.step)",
    "self.layers.generator(block.id, 0)",
    "every step draws the same masks",
    "tests/torch/test_draws.py::test_every_step_has_draws_of_its_own",
)
mutant(
    "deployment.monitoring:CoverageMonitor.update",
    "plan.both(self._release, before)",
    "plan.both(self._release, self._thresholds[-1])",
    "late labels are compared with a threshold that did not predict them",
    "tests/deployment/test_following.py::test_nobody_and_late_labels_are_batches",
)
mutant(
    "torch.trainer:TorchDPSGD._prepare",
    "compare_with_autograd(engine, training_copy(self.module).to(trained[0].device), self._losses, trained)",
    "None",
    "a layer with a wrong rule trains on something else",
    "tests/torch/test_training.py::test_terms_that_are_not_gradients_are_refused_before_any_step",
)
