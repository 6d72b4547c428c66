"""anomalib's post-processor by calibration: its rate in simulation, masks, and what is refused. Needs anomalib."""

import runpy
from pathlib import Path

import pytest
import torch

pytest.importorskip("anomalib")
pytestmark = pytest.mark.filterwarnings("ignore")
EXAMPLE = Path(__file__).parents[1] / "examples" / "anomalib_post_processor.py"


@pytest.fixture(scope="module")
def kind():
    return runpy.run_path(str(EXAMPLE))["CalibratedPostProcessor"]


def validated(kind, scores, maps=None, labels=None, **settings):
    from anomalib.data import ImageBatch

    processor = kind(**settings)
    batch = ImageBatch(image=torch.zeros(len(scores), 3, 8, 8), pred_score=scores, anomaly_map=maps, gt_label=labels)
    processor.on_validation_batch_end(None, None, batch)
    processor.on_validation_epoch_end(None, None)
    return processor


def test_the_rate_of_false_alarms_holds_and_masks_are_on_few_normal_images(kind):
    from anomalib.data import ImageBatch, InferenceBatch

    generator = torch.Generator().manual_seed(0)
    held, marked = 0, []
    for _ in range(200):
        maps = torch.randn(400, 4, 4, generator=generator)
        processor = validated(kind, maps.flatten(1).amax(1), maps, fpr=0.05, region_rate=0.1)
        new = torch.randn(2000, 4, 4, generator=generator)
        batch = ImageBatch(image=torch.zeros(2000, 3, 8, 8), pred_score=new.flatten(1).amax(1), anomaly_map=new)
        processor.post_process_batch(batch)
        held += float(batch.pred_label.float().mean()) <= 0.06
        marked.append(float(batch.pred_mask.flatten(1).any(1).float().mean()))
    assert held >= 185
    assert sum(marked) / 200 <= 0.105
    out = processor(InferenceBatch(pred_score=torch.tensor([99.0, -99.0]), anomaly_map=new[:2]))
    assert out.pred_label.tolist() == [True, False]
    assert out.pred_score.tolist() == pytest.approx([1 - 1 / 401, 0.0])


def test_anomalous_validation_images_do_not_calibrate_and_too_few_are_refused(kind):
    scores = torch.cat([torch.randn(100), torch.full((50,), 99.0)])
    labels = torch.cat([torch.zeros(100), torch.ones(50)]).bool()
    processor = validated(kind, scores, labels=labels, fpr=0.1)
    assert len(processor.calibration) == 100
    assert float(processor.image_threshold) < 99
    with pytest.raises(ValueError, match="299 normal validation images"):
        validated(kind, scores, fpr=0.01)


def test_the_state_is_kept(kind):
    processor = validated(kind, torch.randn(100), fpr=0.1)
    again = kind(fpr=0.1)
    again.load_state_dict(processor.state_dict())
    assert torch.equal(again.calibration, processor.calibration)
    assert torch.equal(again.image_threshold, processor.image_threshold)
