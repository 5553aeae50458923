"""`random-picker`: every candidate is as likely, whatever it scored."""

from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.interfaces import Picker, PickerParameters
from services.picker.state.layout import Floats, Rows


class RandomPicker(Picker):
    """Uniform choice without replacement."""

    TYPE = "random-picker"
    Parameters = PickerParameters
    parameters: PickerParameters

    def pick(self, cycle: Cycle, rows: Rows, totals: Floats) -> list[int]:
        count = min(self.parameters.count, len(rows))
        if count == 1:
            return [int(rows[int(cycle.random.random() * len(rows))])]
        return [int(row) for row in cycle.random.permutation(rows)[:count]]
