<?php
// Reads a template as the import of Zabbix's frontend does, with the expressions of its triggers, and applies the patterns
// of its items to a line of the check: php zabbix.php FRONTEND TEMPLATE LINE
[, $root, $file, $line] = $argv;
set_error_handler(function ($no, $text, $at, $line) { throw new ErrorException("$text ($at:$line)"); }, E_ALL & ~E_DEPRECATED);
chdir($root);
require 'vendor/autoload.php';
$classes = [];
foreach (new RecursiveIteratorIterator(new RecursiveDirectoryIterator("$root/include/classes")) as $f) {
	$classes[$f->getBasename('.php')] = $f->getPathname();
}
spl_autoload_register(function ($class) use ($classes) { if (isset($classes[$class])) require_once $classes[$class]; });
foreach (['defines', 'func', 'gettextwrapper', 'translateDefines', 'triggers', 'items', 'hosts', 'validate'] as $name) {
	require_once "include/$name.inc.php";
}
$data = CImportReaderFactory::getReader('yaml')->read(file_get_contents($file));
$validator = new CXmlValidator(new CImportValidatorFactory('yaml'), 'yaml');
$data = $validator->setStrict(true)->validate($data, '/');
foreach ($data['zabbix_export']['templates'] as $template) {
	foreach ($template['items'] as $item) {
		$value = $line;
		foreach ($item['preprocessing'] ?? [] as $step) {
			[$pattern, $output] = $step['parameters'];
			if ($step['type'] != 'REGEX' || $output != '\1' || !preg_match("/$pattern/", $line, $found)) {
				throw new Exception("$pattern finds nothing in $line");
			}
			$value = $found[1];
		}
		echo $item['key'], ': ', $value, "\n";
		foreach ($item['triggers'] ?? [] as $trigger) {
			$parser = new CExpressionParser(['usermacros' => true, 'lldmacros' => false]);
			if ($parser->parse($trigger['expression']) != CParser::PARSE_SUCCESS) {
				throw new Exception($trigger['expression'].': '.$parser->getError());
			}
			$check = new CExpressionValidator(['usermacros' => true]);
			if (!$check->validate($parser->getResult()->getTokens())) {
				throw new Exception($trigger['expression'].': '.$check->getError());
			}
		}
	}
}
