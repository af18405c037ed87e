"""What a release assumes about the caller's code, one sentence each.

Privacy and coverage depend on code of the caller that the library can test only in part. The ledger, the certificate
and the report show these sentences.
"""

from typing import Any

GROUP_FUNCTION = (
    "groups computes the group of a record from that record alone (privacy needs this too: groups share no budget, "
    "because each record lies in one of them, independently of the other records)"
)
OVERLAPPING_GROUP_FUNCTION = (
    "groups computes the groups of a record from that record alone (privacy needs this too: a record is charged for "
    "the groups that it may be in, independently of the other records)"
)
OWN_SCORE = (
    "conformity_score computes the scores of a row from that row of probabilities alone (privacy needs this too: "
    "otherwise one record would change the scores of the others)"
)
PREFIT = (
    "estimator was trained without these records (as prefit=True states) and computes the outputs of each row from "
    "that row alone; the records that it was trained on are not protected by this release"
)
PRIVATE_MODEL = (
    "the model was trained elsewhere at the cost that its ledger states and contains nothing else from the records; it "
    "computes the outputs of each row from that row alone"
)
TORCH_MODULE = (
    "the torch module and its loss treat each record separately, on real records as on the synthetic rows of the dry "
    "run; the starting weights of the module do not come from the records"
)
OWN_MECHANISM = "the caller's training mechanism releases what its event pays for, and nothing else from the records"
OWN_STEP = (
    "each preprocessing step of the caller releases what its event pays for, and transforms each row by using only "
    "this release and that row"
)
OUTER_STEPS = (
    "what the caller put around the estimator (functions, frozen steps, estimators that fit it) learned nothing from "
    "these records and computes each row and each target from that one alone"
)
OWN_DATASET = "each item of the caller's data set is one record and is computed from that record alone"
OWN_SOURCE = (
    "the caller's source contains each record once, and all records of a person in one block (each reading checks that "
    "its blocks stay the same)"
)
DASK = (
    "the Dask collection contains each record once whenever it is computed (each reading checks that the rows and "
    "their order stay the same)"
)
PROCESSES = "each record is held by only one process of the group"
OWN_SCORES = (
    "each score depends on one record, the model and independent noise only, and training cost what was declared for it"
)
LIKELIHOOD_RATIO = (
    "likelihood_ratio gives a record its ratio from that record alone (privacy needs it too: else one record would "
    "change which others are kept)"
)
OWN_LOSSES = (
    "each loss comes from one record, the model, the threshold and independent noise; training cost what was declared "
    "for it; where no finite threshold is returned the caller acts so that the loss is 0"
)


def is_own(value: Any) -> bool:
    """Return whether an object's class is the caller's and not of this package."""
    return type(value).__module__.partition(".")[0] != "dpscp"
