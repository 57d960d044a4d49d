"""The mean of the daily maxima of sensors: how hot a site gets on a day, whichever sensor reads most often.

Shows an aggregate of an aggregate: the maximum of each sensor and day, then the mean of these over the sensors. A plain
mean would count a sensor that reads often more than others. From the root of the repository:

    millrace send climate examples/data/climate.json --create
    millrace run examples/daily_peaks.py --until-caught-up
    millrace query "SELECT window_start, sensors, mean_peak, lowest, highest, timing FROM daily_peaks ORDER BY 1"

Neither query has a trigger, so each answers when the day is over. A reading that comes late raises the maximum of its
sensor: the old maximum is taken back, and the mean of the day is corrected.

    millrace send climate examples/data/climate_late.json
    millrace run examples/daily_peaks.py --until-caught-up
    millrace query "SELECT window_start, sensors, mean_peak, lowest, highest, timing FROM daily_peaks ORDER BY 1"
    millrace query "SELECT sensor, window_start, peak FROM hot_days ORDER BY 1, 2"
"""

from millrace import Pipeline, agg, log, window

readings = log("climate", schema="sensor STRING, celsius DOUBLE, at TIMESTAMP")
day = window.fixed("1d")

peaks = (
    readings.event_time("at", delay="10s")
    .group_by("sensor")
    .window(day, lateness="7d")
    .aggregate(peak=agg.max("celsius"))
)

site = peaks.window(day, lateness="7d").aggregate(
    sensors=agg.count(), mean_peak=agg.mean("peak"), lowest=agg.min("peak"), highest=agg.max("peak")
)

climate = Pipeline("climate", views={"daily_peaks": site, "hot_days": peaks.where("peak >= 30")})
