"""How long the lock of a deleted pod is kept."""

import pytest
from pytest import param

from hami.scheduler.deleted_holder import DeletedHolder

BEFORE, AFTER, LATER = "2026-11-24T06:50:31Z", "2026-11-24T06:50:46Z", "2026-11-24T06:50:56Z"


@pytest.mark.parametrize("reads, over_at", [
    param({0: BEFORE, 4: AFTER, 14: LATER}, 11, id="a kubelet that works renews its Lease within ten seconds"),
    param({0: BEFORE, 9: AFTER, 19: LATER}, 13, id="it renews late"),
    param({0: BEFORE, 20: AFTER}, 24, id="a kubelet that stood still for longer than ten seconds"),
    param({0: BEFORE}, None, id="a kubelet that is gone: the time-out of the lock decides"),
    param({0: None}, 11, id="no Lease: seconds alone decide"),
    param({0: BEFORE, 5: None}, 11, id="the Lease was deleted"),
])
def test_the_lock_of_a_deleted_pod_is_kept_until_its_kubelet_has_noticed(reads, over_at):
    """*reads*: renew times of the Lease from that second on. It is read each second."""
    holder, renewal, over = DeletedHolder(seen_at=100.0), None, []
    for second in range(60):
        renewal = reads.get(second, renewal)
        holder = holder.observe(renewal, 100.0 + second)
        over.append(holder.is_over(100.0 + second))
    assert over == [over_at is not None and second >= over_at for second in range(60)]
