"""What a release takes on the caller's word, one plain sentence each: the ledger, certificate and report show them.

Code of the caller cannot be proven to do what privacy and coverage need of it. Some of it is tried, none of it is
known. Whoever reads a release sees here on what it rests.
"""

from typing import Any

GROUP_FUNCTION = (
    "groups gives a record its group from that record alone (privacy needs it too: groups share no budget because each "
    "record lies in one of them, whatever the others are)"
)
OWN_SCORE = (
    "conformity_score gives a row its scores from that row of probabilities alone (privacy needs it too: else one "
    "record would change the scores of the others)"
)
PREFIT = (
    "estimator was trained without these records (prefit=True says so) and gives each row its outputs from that row "
    "alone; the records that it was trained on are not protected by this release"
)
PRIVATE_MODEL = (
    "the model was trained elsewhere at the cost that its ledger states and has nothing else from the records; it "
    "gives each row its outputs from that row alone"
)
TORCH_MODULE = (
    "the torch module and its loss treat each record by itself, on the records as on the synthetic rows that were "
    "tried; the module starts from weights that do not come from the records"
)
OWN_MECHANISM = "the training mechanism of the caller releases what its event pays for, and nothing else of the records"
OWN_STEP = (
    "each preprocessing step of the caller releases what its event pays for, and changes each row by what it released "
    "and that row alone"
)
OWN_DATASET = "each item of the caller's data set is one record and is made from that record alone"
OWN_SOURCE = (
    "the caller's source of records holds each record once, and all records of a person in one block (that its blocks "
    "stay the same is checked at each reading)"
)
DASK = (
    "the Dask collection holds each record once whenever it is computed (that the rows and their order stay the same "
    "is checked at each reading)"
)
PROCESSES = "each record is with one process of the group only"
OWN_SCORES = (
    "each score comes from one record, the model and independent noise, and training cost what was declared for it"
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
    """Whether an object's class is the caller's, and not of this package."""
    return type(value).__module__.partition(".")[0] != "dpscp"
