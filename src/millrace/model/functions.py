"""The names of Spark's built-in functions, each with the number of its arguments.

A mistyped name and a wrong number of arguments are refused when a pipeline is built. A test compares all of them with
Spark itself.
"""

from millrace.model.errors import refuse

_NAMES = """
abs/1 acos/1 acosh/1 add_months/2 aes_decrypt/2-5 aes_encrypt/2-6 aggregate/3-4 and any any_value/1-2
approx_count_distinct/1-2 approx_percentile/2-3 approx_top_k/1-3 approx_top_k_accumulate/1-2
approx_top_k_combine/1-2 approx_top_k_estimate/1-2 array array_agg/1 array_append/2 array_compact/1 array_contains/2
array_distinct/1 array_except/2 array_insert/3 array_intersect/2 array_join/2-3 array_max/1 array_min/1
array_position/2 array_prepend/2 array_remove/2 array_repeat/2 array_size/1 array_sort/1-2 array_union/2
arrays_overlap/2 arrays_zip ascii/1 asin/1 asinh/1 assert_true/1-2 atan/1 atan2/2 atanh/1 avg/1 base64/1 between
bigint/1 bin/1 binary/1 bit_and/1 bit_count/1 bit_get/2 bit_length/1 bit_or/1 bit_xor/1 bitmap_and_agg/1
bitmap_bit_position/1 bitmap_bucket_number/1 bitmap_construct_agg/1 bitmap_count/1 bitmap_or_agg/1 bool_and/1
bool_or/1 boolean/1 bround/1-2 btrim/1-2 cardinality/1 case cast cbrt/1 ceil/1-2 ceiling/1-2 char char_length/1
character_length/1 chr/1 coalesce/1+ collate/2 collation/1 collations collect_list/1 collect_set/1 collect_union/1
concat concat_ws/1+ contains/2 conv/3 convert_timezone/2-3 corr/2 cos/1 cosh/1 cot/1 count count_if/1
count_min_sketch/4 counter_diff/1-2 covar_pop/2 covar_samp/2 crc32/1 csc/1 cume_dist/0 curdate/0 current_catalog/0
current_database/0 current_date/0 current_path/0 current_schema/0 current_time/0-1 current_timestamp/0-1
current_timezone/0 current_user/0 date/1 date_add/2-3 date_diff/2-3 date_format/2 date_from_unix_date/1 date_part/2
date_sub/2 date_trunc/2 dateadd/2-3 datediff/2-3 datepart/2 day/1 dayname/1 dayofmonth/1 dayofweek/1 dayofyear/1
decimal decode/2+ degrees/1 dense_rank div double/1 e/0 element_at/2 elt/2+ encode/2 endswith/2 equal_null/2 every/1
exists exp/1 explode/1 explode_outer/1 expm1/1 extract/2 factorial/1 filter/2 find_in_set/2 first/1-2
first_value/1-2 flatten/1 float/1 floor/1-2 forall/2 format_number/2 format_string/1+ from_avro/2-3 from_base32/1
from_csv/2-3 from_json/2-3 from_protobuf/2-4 from_unixtime/1-2 from_utc_timestamp/2 from_xml/2-3 get/2
get_json_object/2 getbit/2 greatest/2+ grouping/1 grouping_id hash/1+ hex/1 histogram_numeric/2 hll_sketch_agg/1-2
hll_sketch_estimate/1 hll_union/2-3 hll_union_agg/1-2 hmac/2-3 hour/1+ hypot/2 if/3 ifnull/2 ilike in initcap/1
inline/1 inline_outer/1 input_file_block_length/0 input_file_block_start/0 input_file_name/0 instr/2-4 int/1
is_valid_utf8/1 is_valid_variant/1 is_variant_null/1 isnan/1 isnotnull/1 isnull/1 jaro_winkler_similarity/2
java_method json_array_length/1 json_object_keys/1 json_tuple kll_merge_agg_bigint/1-2 kll_merge_agg_double/1-2
kll_merge_agg_float/1-2 kll_sketch_agg_bigint/1-2 kll_sketch_agg_double/1-2 kll_sketch_agg_float/1-2
kll_sketch_get_n_bigint/1 kll_sketch_get_n_double/1 kll_sketch_get_n_float/1 kll_sketch_get_quantile_bigint/2
kll_sketch_get_quantile_double/2 kll_sketch_get_quantile_float/2 kll_sketch_get_rank_bigint/2
kll_sketch_get_rank_double/2 kll_sketch_get_rank_float/2 kll_sketch_merge_bigint/2 kll_sketch_merge_double/2
kll_sketch_merge_float/2 kll_sketch_to_string_bigint/1 kll_sketch_to_string_double/1 kll_sketch_to_string_float/1
kurtosis/1 lag/0-4 last/1-2 last_day/1 last_value/1-2 lcase/1 lead/0-4 least/2+ left/2 len/1 length/1
levenshtein/2-3 like listagg/1-2 ln/1 localtime/0-1 localtimestamp/0-1 locate/2-3 log/1-2 log10/1 log1p/1 log2/1
lower/1 lpad/2-3 ltrim/1-2 luhn_check/1 make_date/3 make_dt_interval/0-4 make_interval/0-7 make_time/3
make_timestamp/1-7 make_timestamp_ltz/2-7 make_timestamp_ntz/2-6 make_valid_utf8/1 make_ym_interval/0-2 map
map_concat map_contains_key/2 map_entries/1 map_filter/2 map_from_arrays/2 map_from_entries/1 map_keys/1
map_values/1 map_zip_with/3 mask/1-5 max/1 max_by/2-3 md5/1 mean/1 measure/1 median/1 min/1 min_by/2-3 minute/1+
mod/2 mode/0-2 monotonically_increasing_id/0 month/1 monthname/1 months_between/2-3 named_struct nanvl/2 negative/1
next_day/2 not now/0-1 nth_value/2-3 ntile/0-1 nullif/2 nullifzero/1 nvl/2 nvl2/3 octet_length/1 or overlay/3-4
parse_json/1 parse_url/2-3 percent_rank percentile/2-3 percentile_approx/2-3 percentile_cont/1 percentile_disc/1
pi/0 pmod/2 posexplode/1 posexplode_outer/1 position/2-3 positive/1 pow/2 power/2 printf/1+ python_worker_logs
quarter/1 quote/1 radians/1 raise_error/1 rand/0-1 randn/0-1 random/0-1 randstr/1-2 range rank reduce/3-4 reflect
regexp regexp_count/2 regexp_extract/2-3 regexp_extract_all/2-3 regexp_instr/2-3 regexp_like/2 regexp_replace/3-4
regexp_substr/2 regr_avgx/2 regr_avgy/2 regr_count/2 regr_intercept/2 regr_r2/2 regr_slope/2 regr_sxx/2 regr_sxy/2
regr_syy/2 repeat/2 replace/2-3 reverse/1 right/2 rint/1 rlike round/1-2 row_number/0 rpad/2-3 rtrim/1-2
schema_of_avro/1-2 schema_of_csv/1-2 schema_of_json/1-2 schema_of_variant/1 schema_of_variant_agg/1
schema_of_xml/1-2 sec/1 second/1+ sentences/1-3 sequence/2-3 session_user/0 session_window/2 sha/1 sha1/1 sha2/2
shiftleft/2 shiftright/2 shiftrightunsigned/2 shuffle/1-2 sign/1 signum/1 sin/1 sinh/1 size/1 skewness/1 slice/3
smallint/1 some sort_array/1-2 soundex/1 space/1 spark_partition_id/0 split/2-3 split_part/3 sql_keywords sqrt/1
st_asbinary/1-2 st_geogfromwkb/1 st_geomfromwkb/1-2 st_setsrid/2 st_srid/1 stack startswith/2 std/1 stddev/1
stddev_pop/1 stddev_samp/1 str_to_map/1-3 string/1 string_agg/1-2 struct substr/2-3 substring/2-3 substring_index/3
sum/1 tan/1 tanh/1 theta_difference/2 theta_intersection/2 theta_intersection_agg/1 theta_sketch_agg/1-2
theta_sketch_estimate/1 theta_union/2-3 theta_union_agg/1-2 time time_bucket/2-3 time_diff/3 time_from_micros/1
time_from_millis/1 time_from_seconds/1 time_to_micros/1 time_to_millis/1 time_to_seconds/1 time_trunc/2 timestamp
timestamp_micros/1 timestamp_millis/1 timestamp_nanos/1 timestamp_seconds/1 tinyint/1 to_avro/1-2 to_base32/1
to_binary/1-2 to_char/2 to_csv/1-2 to_date/1-2 to_json/1-2 to_number/2 to_protobuf/2-4 to_time/1-2 to_timestamp/1-2
to_timestamp_ltz/1-2 to_timestamp_ntz/1-2 to_unix_timestamp/1-2 to_utc_timestamp/2 to_varchar/2 to_variant_object/1
to_xml/1-2 transform/2 transform_keys/2 transform_values/2 translate/3 trim/1-2 trunc/2 try_add/2
try_aes_decrypt/2-5 try_avg/1 try_divide/2 try_element_at/2 try_make_interval/1-7 try_make_timestamp/1-7
try_make_timestamp_ltz/2-7 try_make_timestamp_ntz/2-6 try_mod/2 try_multiply/2 try_parse_json/1 try_parse_url/2-3
try_reflect try_subtract/2 try_sum/1 try_to_binary/1-2 try_to_date/1-2 try_to_number/2 try_to_time/1-2
try_to_timestamp/1-2 try_url_decode/1 try_validate_utf8/1 try_variant_array_append/3 try_variant_get/2-3
try_variant_insert/3 try_variant_set/3-4 tuple_difference_double/2 tuple_difference_integer/2
tuple_difference_theta_double/2 tuple_difference_theta_integer/2 tuple_intersection_agg_double/1-2
tuple_intersection_agg_integer/1-2 tuple_intersection_double/2-3 tuple_intersection_integer/2-3
tuple_intersection_theta_double/2-3 tuple_intersection_theta_integer/2-3 tuple_sketch_agg_double/2-4
tuple_sketch_agg_integer/2-4 tuple_sketch_estimate_double/1 tuple_sketch_estimate_integer/1
tuple_sketch_summary_double/1-2 tuple_sketch_summary_integer/1-2 tuple_sketch_theta_double/1
tuple_sketch_theta_integer/1 tuple_union_agg_double/1-3 tuple_union_agg_integer/1-3 tuple_union_double/2-4
tuple_union_integer/2-4 tuple_union_theta_double/2-4 tuple_union_theta_integer/2-4 typeof/1 ucase/1 unbase64/1
unhex/1 uniform/2-3 unix_date/1 unix_micros/1 unix_millis/1 unix_nanos/1 unix_seconds/1 unix_timestamp/0-2 upper/1
url_decode/1 url_encode/1 user/0 uuid/0-1 validate_utf8/1 var_pop/1 var_samp/1 variance/1 variant_array_append/3
variant_delete variant_explode variant_explode_outer variant_get/2-3 variant_insert/3 variant_set/3-4
variant_strip_nulls/1-2 vector_avg/1 vector_cosine_similarity/2 vector_inner_product/2 vector_l2_distance/2
vector_norm/1-2 vector_normalize/1-2 vector_sum/1 version/0 weekday/1 weekofyear/1 when width_bucket/4 window/2-4
window_time/1 xpath/2 xpath_boolean/2 xpath_double/2 xpath_float/2 xpath_int/2 xpath_long/2 xpath_number/2
xpath_short/2 xpath_string/2 xxhash64/1+ year/1 zeroifnull/1 zip_with/3
"""
"""`abs/1` takes one argument, `round/1-2` one or two, `hash/1+` at least one.

A name without a number takes any number, or is also an operator or a type, which only the parser and Spark can tell.
"""


def _counts(text: str) -> tuple[int, int | None]:
    least, _, most = text.removesuffix("+").partition("-")
    return int(least), None if text.endswith("+") else int(most or least)


_COUNTS = {name: _counts(text) for name, _, text in (each.partition("/") for each in _NAMES.split()) if text}
SPARK_FUNCTIONS = frozenset(each.partition("/")[0] for each in _NAMES.split())


def check_count(name: str, count: int) -> None:
    """Refuse a call of a function with a number of arguments that it does not take."""
    least, most = _COUNTS.get(name, (0, None))
    if count < least or (most is not None and count > most):
        takes = f"at least {least}" if most is None else str(least) if least == most else f"{least} to {most}"
        noun = "argument" if takes in ("1", "at least 1") else "arguments"
        raise refuse(f"{name}() takes {takes} {noun}, not {count}")
