"""GPUs as the driver's library tells of them: listed, watched, measured, and kept from jobs that they cannot run."""

import os

import ampd_process
from ampd.v1 import device_pb2, job_pb2, training_service_pb2
from ampd_process import DaemonTest, eventually, glyphs_job, program
from metrics_test import samples

DRIVER = "driver 580.95.05\ncuda 13000\n"
H200 = """gpu GPU-aaaa
name NVIDIA H200
pci 00000000:4B:00.0
capability 9 0
mig 0
memory 150754820096 150000000000 754820096
utilization 75 30
power 350500
power_limit 700000
energy 123456789
temperature 54
clock 1980 3201
throttle 4
ecc 3 1
tensor 42.5
"""
T4 = "gpu GPU-bbbb\nname Tesla T4\ncapability 7 5\nmemory 16000000000 16000000000 0\n"


class GpusTest(DaemonTest):
    def start(self, script, library="libfake_nvml.so", **arguments):
        self.script_path = os.path.join(self.folder, "gpus")
        self.say(script)
        return self.daemon(config={"nvml_library": program(library)}, environment={"FAKE_NVML_SCRIPT": self.script_path},
                           **arguments)

    def say(self, script):
        """What the driver tells from now on."""
        with open(self.script_path + ".new", "w") as file:
            file.write(script)
        os.rename(self.script_path + ".new", self.script_path)

    def devices(self, ampd):
        response = ampd.api().ListDevices(training_service_pb2.ListDevicesRequest())
        return {device.id: device for device in response.devices}

    def conditions(self, ampd, device="GPU-aaaa"):
        return {device_pb2.DeviceCondition.Kind.Name(condition.kind): condition
                for condition in self.devices(ampd)[device].conditions}

    def test_figures_are_shown_and_measured(self):
        ampd = self.start(DRIVER + H200 + T4, cpu_devices=1)
        eventually(lambda: self.devices(ampd)["GPU-aaaa"].gpu.HasField("tensor_active"), "two readings")
        gpu = self.devices(ampd)["GPU-aaaa"]
        self.assertEqual((gpu.name, gpu.kind, gpu.utilization), ("NVIDIA H200", device_pb2.Device.CUDA, 0.75))
        self.assertEqual((gpu.gpu.compute_capability_major, gpu.gpu.cuda_driver_version), (9, "13.0"))
        self.assertEqual(list(self.devices(ampd)), ["GPU-aaaa", "GPU-bbbb", "cpu-0"])
        table = ampd.ctl("devices").stdout
        self.assertRegex(table, r"GPU-aaaa +CUDA +NVIDIA H200 .* 75% +42% +350 W +54 C")
        self.assertRegex(table, r"GPU-bbbb +CUDA +Tesla T4 .* - +- +- +- ")
        now = samples(ampd.http("/metrics")[1])
        device = '{device="GPU-aaaa"}'
        for name, value in [("ampd_device_utilization_ratio", 0.75), ("ampd_device_memory_used_bytes", 754820096),
                            ("ampd_gpu_memory_utilization_ratio", 0.3), ("ampd_gpu_power_watts", 350.5),
                            ("ampd_gpu_power_limit_watts", 700), ("ampd_gpu_energy_joules_total", 123456.789),
                            ("ampd_gpu_temperature_celsius", 54), ("ampd_gpu_sm_clock_hertz", 1.98e9),
                            ("ampd_gpu_memory_clock_hertz", 3.201e9), ("ampd_gpu_tensor_active_ratio", 0.425),
                            ("ampd_gpu_throttled", 1), ("ampd_gpu_foreign_processes", 0)]:
            self.assertEqual(now[name, device], value, name)
        # What the T4 does not tell has no series.
        told = {name for name, labels in now if "GPU-bbbb" in labels}
        self.assertEqual(told - {"ampd_device_condition"},
                         {"ampd_device_busy", "ampd_device_memory_used_bytes", "ampd_device_memory_size_bytes",
                          "ampd_gpu_info", "ampd_gpu_memory_free_bytes", "ampd_gpu_foreign_processes"})

    def test_a_mode_that_the_gpu_cannot_do_is_refused(self):
        ampd = self.start(DRIVER + T4, cpu_devices=0)
        result = ampd.ctl("submit", self.job_file(glyphs_job(mode="BF16")))
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("precision.mode", result.stderr)
        self.assertIn("BF16 needs compute capability 8.0 or later; Tesla T4 (GPU-bbbb) has 7.5", result.stderr)
        self.assertEqual(ampd.ctl("list").stdout.count("BF16"), 0)

    def test_what_is_wrong_with_a_gpu_is_seen_while_it_lasts(self):
        ampd = self.start(DRIVER + H200, cpu_devices=1)
        eventually(lambda: self.devices(ampd)["GPU-aaaa"].gpu.HasField("power_watts"), "a reading")
        self.say(DRIVER + H200 + f"process {os.getpid()} 1048576\n")
        eventually(lambda: "FOREIGN_PROCESS" in self.conditions(ampd), "a process of others")
        self.assertIn(f"process {os.getpid()} of others", self.conditions(ampd)["FOREIGN_PROCESS"].message)
        self.assertIn("FOREIGN_PROCESS", ampd.ctl("devices").stdout)
        self.say(DRIVER + "gpu GPU-aaaa\nfails 15\n")
        eventually(lambda: "GPU_LOST" in self.conditions(ampd), "a lost GPU")
        self.assertNotIn("FOREIGN_PROCESS", self.conditions(ampd))
        now = samples(ampd.http("/metrics")[1])
        self.assertEqual(now["ampd_device_condition", '{blocks_jobs="true",condition="gpu_lost",device="GPU-aaaa"}'], 1)
        self.assertNotIn(("ampd_gpu_power_watts", '{device="GPU-aaaa"}'), now)
        self.say(DRIVER + H200 + "xid 1 31\nxid 2 79\n")
        eventually(lambda: "HARDWARE_ERROR" in self.conditions(ampd), "an error of the hardware")
        self.assertNotIn("GPU_LOST", self.conditions(ampd))
        self.assertIn("XID 79", self.conditions(ampd)["HARDWARE_ERROR"].message)
        now = samples(ampd.http("/metrics")[1])
        for error_class, xid in [("application", 31), ("hardware", 79)]:
            labels = f'{{class="{error_class}",device="GPU-aaaa",xid="{xid}"}}'
            self.assertEqual(now["ampd_gpu_xid_errors_total", labels], 1)
        self.assertIn("XID 31: memory page fault (APPLICATION)", ampd.log())
        # A daemon with GPUs in trouble trains on its CPU.
        job = ampd.run(glyphs_job(steps=2, resources={"device": "cpu-0", "cpu_threads": 1}))
        self.assert_state(job, "SUCCEEDED")

    def test_workers_that_cannot_use_the_gpu_leave_it_alone(self):
        ampd = self.start("driver 400.1\ncuda 10000\n" + H200, cpu_devices=None)
        kinds = set(self.conditions(ampd))
        # Depending on how this tree is built.
        self.assertTrue(kinds & {"NO_CUDA_BUILD", "DRIVER_TOO_OLD"}, kinds)
        self.assertEqual(list(self.devices(ampd)), ["GPU-aaaa", "cpu-0"])
        job = ampd.run(glyphs_job(steps=2))
        self.assert_state(job, "SUCCEEDED")
        gpu_only = ampd.ctl("submit", self.job_file(glyphs_job(resources={"device": "GPU-aaaa"})))
        self.assertNotEqual(gpu_only.returncode, 0)
        self.assertRegex(gpu_only.stderr, "resources: .*(NO_CUDA_BUILD|DRIVER_TOO_OLD)")

    def test_a_driver_of_long_ago_tells_what_it_can(self):
        ampd = self.start(DRIVER + H200, library="libfake_nvml_old.so", cpu_devices=1)
        eventually(lambda: self.devices(ampd)["GPU-aaaa"].gpu.HasField("power_watts"), "a reading")
        self.assertFalse(self.devices(ampd)["GPU-aaaa"].gpu.HasField("energy_joules"))
        self.assertIn("the driver reports no XIDs", ampd.log())

    def test_without_library_or_driver_the_cpu_is_the_device(self):
        for library, script, reason in [("libno_such.so", "", "libno_such.so"),
                                        ("libfake_nvml.so", "init 9\n", "Driver Not Loaded")]:
            ampd = self.start(script, library=library, cpu_devices=None)
            self.assertEqual(list(self.devices(ampd)), ["cpu-0"])
            self.assertIn(reason, ampd.log())
            self.assertEqual(ampd.terminate(), 0)


if __name__ == "__main__":
    ampd_process.main()
