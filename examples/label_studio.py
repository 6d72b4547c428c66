"""What `vergence check` wrote, as tasks of Label Studio, and what people said there, as confirmations for `vergence check`.

vergence check FOLDER --out OUT
python examples/label_studio.py tasks OUT FOLDER "/data/local-files/?d=FOLDER/"
python examples/label_studio.py confirmed EXPORT.json OUT/confirmed.csv
vergence check FOLDER --out OUT --confirm OUT/confirmed.csv

The first line of Python writes OUT/tasks.json, to import, and OUT/label_config.xml, the labeling interface. Its last argument
stands before each name and makes it an address: here in the local storage of Label Studio. A task is predicted as anomaly or
normal only if there was a reference; regions are predicted in any case. The second line reads an export of the type JSON, where
the last annotation of a task counts. The predictions were validated with label-studio-sdk 2.1.2.
"""

import json
import sys
from pathlib import Path
from urllib.parse import quote

import pyarrow.parquet as pq

from vergence.data.image_list import open_images
from vergence.utils.parts import write_table

CONFIG = """<View>
  <Image name="image" value="$image"/>
  <Header value="$reason"/>
  <Choices name="mark" toName="image"><Choice value="anomaly"/><Choice value="normal"/></Choices>
  <RectangleLabels name="region" toName="image"><Label value="anomaly"/></RectangleLabels>
</View>
"""


def mark(flag):
    said = {"choices": ["anomaly" if flag else "normal"]}
    return {"from_name": "mark", "to_name": "image", "type": "choices", "value": said}


def rectangle(box, size):
    """Returns a frame "top left bottom right" in pixels of an image of a size (height, width) as a rectangle in percent."""
    (top, left, bottom, right), (height, width) = map(int, box.split()), size
    sides = {"width": 100 * (right - left) / width, "height": 100 * (bottom - top) / height, "rotation": 0}
    value = {"x": 100 * left / width, "y": 100 * top / height, **sides, "rectanglelabels": ["anomaly"]}
    of = {"original_width": width, "original_height": height, "image_rotation": 0}
    return {"from_name": "region", "to_name": "image", "type": "rectanglelabels", **of, "value": value}


def tasks(out, folder, address):
    images, out, found = open_images(folder), Path(out), []
    at = {name: i for i, name in enumerate(images.names)}
    flags = json.loads((out / "summary.json").read_text(encoding="utf-8"))["rate"] != "none"
    for item in sorted(pq.read_table(out / "items.parquet").to_pylist(), key=lambda item: -item["score"]):
        result = [mark(item["flag"])] if flags else []
        if item["boxes"]:
            result += [rectangle(box, images.read(at[item["path"]]).size) for box in item["boxes"].split("; ")]
        data = {name: item[name] for name in ("path", "score", "reason")} | {"image": address + quote(item["path"])}
        found.append({"data": data, "predictions": [{"model_version": "vergence", "result": result}] if result else []})
    (out / "tasks.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
    (out / "label_config.xml").write_text(CONFIG, encoding="utf-8")


def confirmed(export, file):
    said = {}
    for task in json.loads(Path(export).read_text(encoding="utf-8")):
        for annotation in task["annotations"]:
            for result in () if annotation.get("was_cancelled") else annotation["result"]:
                if result["from_name"] == "mark":
                    said[task["data"]["path"]] = result["value"]["choices"][0]
    write_table(Path(file), {"path": list(said), "mark": list(said.values())})


if __name__ == "__main__":
    {"tasks": tasks, "confirmed": confirmed}[sys.argv[1]](*sys.argv[2:])
